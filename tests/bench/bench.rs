//! `make bench`: one table of measurements, each beside its floor, taken by turns in the same run.
//!
//! A floor is the least that any program would have to do for the same effect: start and end (the
//! example `bench-empty`), or read a file, send and receive the same bytes, make the same number of
//! syncs and run one bare `bash -c` (`bench-floor`). Owns: what is measured and what is aimed at.
//! Promises: nothing leaves this machine, no key is needed, all files are temporary; a missed goal
//! is said and is no failure, since a table is no test. Leans on `/proc` for the memory and the
//! processor time of a living process, which no other program can distort. Gives up: a busy machine
//! makes every number larger, and only the medians and the ratios are worth comparing.

#[path = "../support/mod.rs"]
mod support;

mod journal;
mod process;
mod table;

use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use mino::limits::{BURST_MILLIS, QUIET_MILLIS};
use mino::model::sse::Frames;
use mino::text::Cleaner;
use serde_json::Value;

use process::{Look, Piped, count_syncs, run_time};
use support::beside;
use support::endpoint::{Answer, Endpoint, Piece, Reply, Request, call, text};
use support::home::Home;
use support::tty::{QUESTION as APPROVE, Size, Tty};
use table::{Goal, Row, Unit, median};

const SIZE: Size = Size { rows: 24, cols: 80 };
const QUESTION: &str = "How many files are in this folder?";
const COMMAND: &str = "echo 12";
const TURN_MEMORY: Goal = Goal::AtMost(4.0 * 1024.0 * 1024.0);

fn main() {
    table::print_head();
    let mut rows = Vec::new();
    for (what, measure) in [
        ("start", start as fn() -> Vec<Row>),
        ("load", load),
        ("text turn", text_turn),
        ("tool turn", tool_turn),
        ("long answers", long_answers),
        ("text in memory", in_memory),
    ] {
        eprintln!("bench: {what} …");
        let new = measure();
        table::print(&new);
        rows.extend(new);
    }
    table::print_end(&rows);
}

fn floor(arguments: &[&str]) -> Command {
    let mut command = Command::new(beside("examples/bench-floor"));
    command.args(arguments);
    command
}

fn mino(home: &Home, arguments: &[&str]) -> Command {
    home.mino(arguments).command()
}

/// Takes two measurements by turns, so that whatever else the machine does falls on both.
fn by_turns(
    times: usize,
    mut one: impl FnMut() -> f64,
    mut other: impl FnMut() -> f64,
) -> (f64, f64) {
    let pairs: Vec<_> = (0..times).map(|_| (one(), other())).collect();
    let (ones, others) = pairs.into_iter().unzip();
    (median(ones), median(others))
}

// --- start ------------------------------------------------------------------------------------

fn start() -> Vec<Row> {
    let endpoint = Endpoint::start([]);
    let home = Home::new(&endpoint);
    Piped::start(mino(&home, &[])).end();
    let empty = || run_time(Command::new(beside("examples/bench-empty")));
    let (version, empty_program) = by_turns(201, || run_time(mino(&home, &["version"])), empty);
    let (prompt, empty_again) = by_turns(101, || prompt_time(mino(&home, &[])), empty);
    let goal = Goal::Times(1.5);
    vec![
        Row::new("start to exit of `mino version`", Unit::Millis, version).beside(
            "an empty program",
            empty_program,
            goal,
        ),
        Row::new("start to prompt, empty journal", Unit::Millis, prompt).beside(
            "an empty program",
            empty_again,
            goal,
        ),
    ]
}

fn prompt_time(command: Command) -> f64 {
    let start = Instant::now();
    let program = Piped::start(command);
    let elapsed = start.elapsed().as_secs_f64();
    program.end();
    elapsed
}

fn load() -> Vec<Row> {
    let endpoint = Endpoint::start([]);
    let home = Home::new(&endpoint);
    Piped::start(mino(&home, &[])).end();
    let path = home.journal_path();
    journal::write_large(&path);
    let name = path.to_str().expect("a name in UTF-8");
    let (prompt, read) = by_turns(
        9,
        || prompt_time(mino(&home, &[])),
        || prompt_time(floor(&["read", name])),
    );
    let program = Piped::start(mino(&home, &[]));
    let peak = program.look().peak_bytes;
    program.end();
    vec![
        Row::new("start to prompt, 64 MiB journal", Unit::Millis, prompt).beside(
            "a plain read of the file",
            read,
            Goal::Times(4.0),
        ),
        Row::new("  its peak memory", Unit::Mebibytes, peak),
    ]
}

// --- turns ------------------------------------------------------------------------------------

/// What the floor does for one turn.
struct Script {
    folder: tempfile::TempDir,
    steps: usize,
}

impl Script {
    fn new() -> Script {
        let folder = tempfile::tempdir().expect("a folder");
        Script { folder, steps: 0 }
    }

    fn step(&mut self, kind: &str, bytes: &[u8]) {
        self.steps += 1;
        let name = format!("{:02}.{kind}", self.steps);
        std::fs::write(self.folder.path().join(name), bytes).expect("a step of the floor");
    }

    fn record(&mut self, line: &str) {
        self.step("record", format!("{line}\n").as_bytes());
    }

    fn request(&mut self, request: &Request) {
        let mut bytes = format!("{} {} HTTP/1.1\r\n", request.method, request.path).into_bytes();
        for (name, value) in &request.headers {
            bytes.extend(format!("{name}: {value}\r\n").bytes());
        }
        bytes.extend(b"\r\n");
        bytes.extend(&request.body);
        self.step("request", &bytes);
    }

    fn command(&self, endpoint: &Endpoint) -> Command {
        let address = endpoint.address().to_string();
        let folder = self.folder.path().to_str().expect("a name in UTF-8");
        floor(&["turn", &address, folder])
    }
}

fn short_answer() -> Answer {
    text(
        "There are 12 files in this folder: nine of them are sources, two are notes, one is a list.",
    )
}

fn text_turn() -> Vec<Row> {
    let endpoint = Endpoint::start([]);
    let home = Home::new(&endpoint);
    piped_turn(&endpoint, mino(&home, &[]));
    let (lines, requests) = (home.lines().split_off(3), endpoint.requests().split_off(1));
    let mut script = Script::new();
    script.record(&lines[0]);
    script.request(&requests[0]);
    script.record(&lines[1]);
    script.record(&lines[2]);

    let (mut peaks, mut floor_peaks) = (Vec::new(), Vec::new());
    let (turn, bare) = by_turns(
        41,
        || {
            let (seconds, look) = piped_turn(&endpoint, mino(&home, &["--new"]));
            peaks.push(look.peak_bytes);
            seconds
        },
        || {
            let (seconds, look) = piped_turn(&endpoint, script.command(&endpoint));
            floor_peaks.push(look.peak_bytes);
            seconds
        },
    );
    let traced = |home: &Home, turns| {
        let trace = home.in_work("trace");
        let mut program = Piped::start(process::traced(mino(home, &["--new"]), &trace));
        for _ in 0..turns {
            endpoint.push(short_answer());
            program.ask(QUESTION);
        }
        program.end();
        trace
    };
    vec![
        Row::new("a text turn", Unit::Millis, turn).beside(
            "the same bytes and 3 syncs",
            bare,
            Goal::Times(1.3),
        ),
        Row::new("  its peak memory", Unit::Mebibytes, median(peaks)).beside(
            "the bare client's",
            median(floor_peaks),
            TURN_MEMORY,
        ),
        syncs(3.0, &endpoint, &traced),
        saved_bytes(&lines),
    ]
}

/// The second turn of a conversation through pipes, from the question to the next prompt. The first
/// brings the program's code into memory.
fn piped_turn(endpoint: &Endpoint, command: Command) -> (f64, Look) {
    endpoint.push(short_answer());
    endpoint.push(short_answer());
    let mut program = Piped::start(command);
    program.ask(QUESTION);
    let start = Instant::now();
    program.ask(QUESTION);
    let elapsed = start.elapsed().as_secs_f64();
    let look = program.look();
    program.end();
    (elapsed, look)
}

/// The syncs of one turn: what two turns make more than one.
fn syncs(records: f64, endpoint: &Endpoint, run: &dyn Fn(&Home, usize) -> PathBuf) -> Row {
    let count = |turns| {
        let home = Home::new(endpoint);
        count_syncs(&run(&home, turns))
    };
    let counted = process::has_strace().then(|| count(2) - count(1));
    Row::maybe("  its syncs", Unit::Count, counted, "no strace here").beside(
        "one for each record",
        records,
        Goal::None,
    )
}

/// What a turn adds to the journal, beside what has to be in it: the question, items and results.
fn saved_bytes(lines: &[String]) -> Row {
    let saved: usize = lines.iter().map(|line| line.len() + 1).sum();
    let needed = |line: &String| -> usize {
        let record: Value = serde_json::from_str(line).expect("a record");
        let field = match record["kind"].as_str() {
            Some("user_message") => &record["text"],
            Some("model_response") => &record["output"],
            Some("tool_result") => &record["result"],
            _ => return 0,
        };
        field.to_string().len()
    };
    Row::new("  its bytes in the journal", Unit::Count, saved as f64).beside(
        "question, items and results",
        lines.iter().map(needed).sum::<usize>() as f64,
        Goal::None,
    )
}

fn tool_turn() -> Vec<Row> {
    let endpoint = Endpoint::start([]);
    let home = Home::new(&endpoint);
    tty_turn(&endpoint, &mino(&home, &[]));
    let (lines, requests) = (home.lines().split_off(6), endpoint.requests().split_off(2));
    assert_eq!((lines.len(), requests.len()), (6, 2), "{lines:#?}");
    let mut script = Script::new();
    script.step("wait", BURST_MILLIS.to_string().as_bytes());
    script.record(&lines[0]);
    script.request(&requests[0]);
    script.record(&lines[1]);
    script.step("wait", QUIET_MILLIS.to_string().as_bytes());
    script.step("question", APPROVE.as_bytes());
    script.step("wait", BURST_MILLIS.to_string().as_bytes());
    script.record(&lines[2]);
    script.step("command", COMMAND.as_bytes());
    script.record(&lines[3]);
    script.request(&requests[1]);
    script.record(&lines[4]);
    script.record(&lines[5]);

    let mut peaks = Vec::new();
    let (turn, bare) = by_turns(
        31,
        || {
            let (seconds, look) = tty_turn(&endpoint, &mino(&home, &["--new"]));
            peaks.push(look.peak_bytes);
            seconds
        },
        || tty_turn(&endpoint, &script.command(&endpoint)).0,
    );
    let traced = |home: &Home, turns| {
        let trace = home.in_work("trace");
        let tty = Tty::start(SIZE, &process::traced(mino(home, &["--new"]), &trace));
        tty.wait_for("You> ");
        (0..turns).for_each(|_| converse(&endpoint, &tty));
        leave(tty);
        trace
    };
    vec![
        Row::new("an approved tool turn (a)", Unit::Millis, turn).beside(
            "the same, 6 syncs, a bare bash -c",
            bare,
            Goal::Times(1.3),
        ),
        Row::new("  its peak memory", Unit::Mebibytes, median(peaks)).beside("", 0.0, TURN_MEMORY),
        syncs(6.0, &endpoint, &traced),
        saved_bytes(&lines),
    ]
}

/// The second turn of a conversation on a terminal, from the question's Enter to the next prompt,
/// without what approval waits for a paste to show itself.
fn tty_turn(endpoint: &Endpoint, command: &Command) -> (f64, Look) {
    let tty = Tty::start(SIZE, command);
    tty.wait_for("You> ");
    converse(endpoint, &tty);
    let start = Instant::now();
    converse(endpoint, &tty);
    let elapsed = start.elapsed().as_secs_f64();
    let look = Look::at(tty.pid());
    leave(tty);
    (elapsed - table::PASTE_MILLIS as f64 / 1e3, look)
}

fn converse(endpoint: &Endpoint, tty: &Tty) {
    endpoint.push(call("call_1", COMMAND));
    endpoint.push(short_answer());
    tty.send_line(QUESTION);
    tty.answer("y");
    tty.wait_for("You> ");
}

fn leave(mut tty: Tty) {
    tty.send([4]);
    assert_eq!(tty.wait_exit(), 0);
}

// --- long answers -----------------------------------------------------------------------------

const WORDS: [&str; 8] = [
    "the ",
    "answer ",
    "is ",
    "a ",
    "little ",
    "longer ",
    "than ",
    "before,\n",
];

/// An answer of so many deltas, each an event, a chunk and a write of its own.
fn long_answer(deltas: usize) -> Answer {
    let words = WORDS.iter().flat_map(|word| word.split_inclusive(' '));
    let text: String = words.cycle().take(deltas).collect();
    Reply::new().message(&text).completed()
}

fn in_one_burst(answer: Answer) -> Answer {
    let body = answer.body();
    Answer {
        pieces: vec![Piece::Bytes(body)],
        ..answer
    }
}

/// The medians of one kind of answer: Mino's, then the bare reader's.
struct Long {
    wall: (f64, f64),
    cpu: (f64, f64),
    peak: (f64, f64),
    writes: Option<f64>,
}

fn measure_long(times: usize, answer: &dyn Fn() -> Answer) -> Long {
    let endpoint = Endpoint::start([]);
    let home = Home::new(&endpoint);
    endpoint.push(short_answer());
    home.ask(QUESTION).expect_code(0);
    let mut script = Script::new();
    script.request(&endpoint.requests()[0]);

    let run = |command: Command| {
        endpoint.push(answer());
        let mut program = Piped::start(command);
        let (before, start) = (program.look(), Instant::now());
        program.ask(QUESTION);
        let wall = start.elapsed().as_secs_f64();
        let after = program.look();
        program.end();
        let writes = after.writes.zip(before.writes);
        (
            wall,
            after.cpu - before.cpu,
            after.peak_bytes,
            writes.map(|(after, before)| after - before),
        )
    };
    let (mut ours, mut bare) = (Vec::new(), Vec::new());
    for _ in 0..times {
        ours.push(run(mino(&home, &["--new"])));
        bare.push(run(script.command(&endpoint)));
    }
    type Run = (f64, f64, f64, Option<f64>);
    let of = |runs: &[Run], value: fn(&Run) -> f64| median(runs.iter().map(value).collect());
    let both = |value: fn(&Run) -> f64| (of(&ours, value), of(&bare, value));
    let writes: Option<Vec<f64>> = ours.iter().map(|run| run.3).collect();
    Long {
        wall: both(|run| run.0),
        cpu: both(|run| run.1),
        peak: both(|run| run.2),
        writes: writes.map(median),
    }
}

fn long_answers() -> Vec<Row> {
    let mut rows = Vec::new();
    let short = measure_long(7, &|| long_answer(20_000));
    let goal = Goal::Times(3.0);
    rows.extend(long_rows("an answer of 20,000 deltas", &short, goal));
    let long = measure_long(5, &|| long_answer(200_000));
    rows.extend(long_rows("an answer of 200,000 deltas", &long, goal));
    let growth = long.cpu.0 / short.cpu.0;
    rows.push(
        Row::new("  its CPU beside that of 20,000", Unit::Times, growth).beside(
            "linear",
            10.0,
            Goal::Times(1.1),
        ),
    );
    let burst = measure_long(5, &|| in_one_burst(long_answer(200_000)));
    rows.extend(long_rows("the same in one burst (b)", &burst, Goal::None));
    rows
}

fn long_rows(what: &'static str, long: &Long, cpu: Goal) -> [Row; 4] {
    [
        Row::new(what, Unit::Millis, long.wall.0).beside(
            "a reader of the bytes",
            long.wall.1,
            Goal::None,
        ),
        Row::new("  its CPU", Unit::Millis, long.cpu.0).beside("the reader's", long.cpu.1, cpu),
        Row::new("  its peak memory", Unit::Mebibytes, long.peak.0).beside(
            "the reader's",
            long.peak.1,
            Goal::AtMost(8.0 * 1024.0 * 1024.0),
        ),
        Row::maybe(
            "  its write calls",
            Unit::Count,
            long.writes,
            "only root may count them here",
        ),
    ]
}

// --- text in memory ---------------------------------------------------------------------------

fn in_memory() -> Vec<Row> {
    let stream = long_answer(50_000).body();
    let prose = WORDS.concat().repeat(stream.len() / 48);
    let speed = |bytes: usize, work: &mut dyn FnMut()| {
        let start = Instant::now();
        work();
        bytes as f64 / start.elapsed().as_secs_f64()
    };
    let copy = |bytes: &[u8]| {
        let mut kept = Vec::new();
        speed(bytes.len(), &mut || {
            for piece in bytes.chunks(64 * 1024) {
                kept.clear();
                kept.extend_from_slice(std::hint::black_box(piece));
            }
        })
    };
    let read = || {
        let mut frames = Frames::new();
        speed(stream.len(), &mut || {
            for mut piece in stream.chunks(64 * 1024) {
                while let Ok(Some(event)) = frames.next(&mut piece) {
                    std::hint::black_box(event);
                }
            }
        })
    };
    let clean = || {
        let (mut cleaner, mut shown) = (Cleaner::new(), String::new());
        speed(prose.len(), &mut || {
            for piece in prose.as_bytes().chunks(64 * 1024) {
                shown.clear();
                let piece = std::str::from_utf8(piece).expect("ASCII");
                cleaner.push(std::hint::black_box(piece), &mut shown);
            }
        })
    };
    let (sse, sse_copy) = by_turns(15, read, || copy(&stream));
    let (clean, clean_copy) = by_turns(15, clean, || copy(prose.as_bytes()));
    let row = |what, speed, copy| {
        Row::new(what, Unit::MegabytesPerSecond, speed).beside("a copy", copy, Goal::None)
    };
    vec![
        row("the SSE reader", sse, sse_copy),
        row("the sanitiser", clean, clean_copy),
    ]
}
