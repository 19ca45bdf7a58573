//! One table, printed as it grows.

use std::fs;

use mino::limits::{BURST_MILLIS, QUIET_MILLIS};

/// What a tool turn on a terminal waits by design: after the question's Enter, before the approval
/// and after its answer. The floor waits as long, and it is taken off both.
pub const PASTE_MILLIS: u64 = BURST_MILLIS + QUIET_MILLIS + BURST_MILLIS;

#[derive(Clone, Copy, PartialEq)]
pub enum Unit {
    /// Given in seconds.
    Millis,
    /// Given in bytes.
    Mebibytes,
    /// Given in bytes a second.
    MegabytesPerSecond,
    Count,
    Times,
}

impl Unit {
    fn show(self, value: f64) -> String {
        match self {
            Unit::Millis => format!("{:.2} ms", value * 1e3),
            Unit::Mebibytes => format!("{:.2} MiB", value / 1024.0 / 1024.0),
            Unit::MegabytesPerSecond => format!("{:.0} MB/s", value / 1e6),
            Unit::Count => format!("{value:.0}"),
            Unit::Times => format!("{value:.2}"),
        }
    }
}

/// What is aimed at.
#[derive(Clone, Copy)]
pub enum Goal {
    None,
    /// At most so many times the floor.
    Times(f64),
    AtMost(f64),
}

pub struct Row {
    what: &'static str,
    unit: Unit,
    value: Result<f64, &'static str>,
    floor: Option<(&'static str, f64)>,
    goal: Goal,
}

impl Row {
    pub fn new(what: &'static str, unit: Unit, value: f64) -> Row {
        Row::maybe(what, unit, Some(value), "")
    }

    /// A value that can't be measured everywhere; `why_not` stands for it.
    pub fn maybe(what: &'static str, unit: Unit, value: Option<f64>, why_not: &'static str) -> Row {
        Row {
            what,
            unit,
            value: value.ok_or(why_not),
            floor: None,
            goal: Goal::None,
        }
    }

    /// Without a name there is no floor, only a goal.
    pub fn beside(mut self, name: &'static str, floor: f64, goal: Goal) -> Row {
        self.floor = (!name.is_empty()).then_some((name, floor));
        self.goal = goal;
        self
    }

    fn times(&self) -> Option<f64> {
        let (value, (_, floor)) = (self.value.ok()?, self.floor?);
        Some(match self.unit {
            Unit::MegabytesPerSecond => floor / value,
            _ => value / floor,
        })
    }

    fn is_met(&self) -> Option<bool> {
        match self.goal {
            Goal::None => None,
            Goal::Times(most) => Some(self.times()? <= most),
            Goal::AtMost(most) => Some(self.value.ok()? <= most),
        }
    }

    fn print(&self) {
        let value = match self.value {
            Ok(value) => self.unit.show(value),
            Err(why_not) => why_not.to_owned(),
        };
        let (floor, name) = match self.floor {
            Some((name, floor)) => (self.unit.show(floor), name),
            None => (String::new(), ""),
        };
        let times = self.times().map(|times| format!("{times:.2}"));
        let goal = match self.goal {
            Goal::None => String::new(),
            Goal::Times(most) => format!("<= {most} times"),
            Goal::AtMost(most) => format!("<= {}", self.unit.show(most)),
        };
        let verdict = match self.is_met() {
            Some(true) => "met",
            Some(false) => "MISSED",
            None => "",
        };
        let line = format!(
            "{:32} {value:>12} {floor:>12}  {name:34} {:>6}  {goal:12} {verdict}",
            self.what,
            times.unwrap_or_default()
        );
        println!("{}", line.trim_end());
    }
}

pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

pub fn print_head() {
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    let mino = super::support::mino_path();
    let bytes = fs::metadata(&mino).expect("the program").len();
    let cpus = std::thread::available_parallelism().map_or(0, usize::from);
    println!(
        "mino {}, {bytes} bytes; Linux {}; {cpus} CPUs, load {}",
        env!("CARGO_PKG_VERSION"),
        read("/proc/sys/kernel/osrelease").trim(),
        read("/proc/loadavg").split(' ').next().unwrap_or_default(),
    );
    println!(
        "{:32} {:>12} {:>12}  {:34} {:>6}  goal",
        "medians", "Mino", "floor", "what the floor is", "times"
    );
}

pub fn print(rows: &[Row]) {
    rows.iter().for_each(Row::print);
}

pub fn print_end(rows: &[Row]) {
    let judged: Vec<bool> = rows.iter().filter_map(Row::is_met).collect();
    let met = judged.iter().filter(|is_met| **is_met).count();
    println!("{met} of {} goals met", judged.len());
    println!("(a) less the {PASTE_MILLIS} ms in which both wait for a paste to show itself");
    println!("(b) no server sends so: what reading the JSON costs beside reading nothing of it");
}
