//! The journal's format: what one record is, how it is written, and in which order records make sense.
//!
//! Owns: [`Record`], its line of JSON, and the description below. Promises: a line that parses has
//! exactly the fields of its kind; items of a response come back byte for byte. Leans on serde_json's
//! `RawValue`; `order` checks how records follow each other. Gives up: there is no checksum, so a
//! flipped letter inside a text goes unseen.
//!
//! # The format, for whoever writes another reader
//!
//! A journal is one conversation: UTF-8 text, one JSON object a line, each line ended by one line feed
//! (0x0A; no other character ends a line, U+2028 least of all), none longer than 16 MiB with its line
//! feed, all together at most 64 MiB. Lines are only ever appended, each with one write and one sync.
//! A last line without its line feed, or one that isn't JSON, is what a crash leaves of a write: it
//! counts as never written, and Mino copies the file to `<id>-recovery-<n>.jsonl` before cutting it
//! off. Anything else that departs from this description makes the whole file invalid.
//!
//! Every record has, in this order:
//! - `v`: the format's version, 2
//! - `seq`: 1 in the first line, and one more in each that follows
//! - `time`: when it was written, UTC, always in the form `2026-01-31T23:59:59.999Z`
//! - `turn_id`: 32 lowercase hexadecimal digits, the same in all records of a turn and in no other turn
//! - `kind`, and then exactly the fields of that kind, in this order:
//!
//! | `kind` | fields |
//! | --- | --- |
//! | `user_message` | `text`: the question |
//! | `model_response` | `text`: what was shown of it; `output`: an array of the items as the service sent them, byte for byte, but for line breaks between tokens, which are spaces |
//! | `tool_start` | `call_id`, `name`, `arguments`: as in the response's call, all strings; `cwd`: the directory it was to run in |
//! | `tool_result` | `call_id`; `result`: an object of `status`, `output` (a string), then, where they exist, `exit_code` (an integer) and `truncated` (`true`) |
//! | `turn_end` | `status`: `completed`, `failed`, `cancelled` or `interrupted` |
//!
//! No field is missing, unknown, doubled or null. Which items of `output` are calls, and what their
//! `call_id`, `name` and `arguments` are, is the service's language: items of type `function_call`.
//!
//! A turn is one `user_message`; then any number of responses with calls, each followed by its results;
//! then, in a turn that came to an answer, one response without calls; then one `turn_end`. Turns don't
//! overlap. Results come in the order of the calls, one for each call, before the next response or the
//! end. A call that was executed has a `tool_start` directly before its result, with the same `call_id`,
//! `name` and `arguments`; its status is `completed`, `failed`, `timed_out`, `output_limit`, `cancelled`
//! or `unknown`. A call without a start has `denied`, `invalid_arguments`, `unknown_tool` or
//! `not_executed`, and neither `exit_code` nor `truncated`. A `call_id` is used once in its turn. Only a
//! turn with an answer may end `completed`. Whoever finds a turn without its end closes it: `unknown` for
//! a started call without result, `not_executed` for the calls after it, then `interrupted`; nothing else
//! may follow `unknown`. Only completed turns are part of the conversation as the model knows it.
//!
//! Version 1, written by the first Mino, has no `time` and only the kinds `user_message`,
//! `assistant_message` (`text`: the answer; it stands where version 2 has `model_response`) and
//! `turn_end`. Records of version 2 may follow those of version 1, never the reverse.

use std::borrow::Cow;
use std::fmt;
use std::io;
use std::time::{Duration, SystemTime};

use serde::de::value::MapAccessDeserializer;
use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;

use crate::limits::ERROR_TEXT_CHARS;
use crate::step::{ToolResult, TurnStatus};
use crate::{sys, text};

/// The version that is written.
pub const VERSION: u64 = 2;
/// The version of the first Mino, which is still read.
const OLD_VERSION: u64 = 1;

/// 128 random bits, spelled as 32 lowercase hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Id(u128);

impl Id {
    /// A fresh one. An error where the system has no random source.
    pub fn new() -> io::Result<Id> {
        sys::file::random().map(Id)
    }

    /// `None` for anything but the one spelling.
    pub fn parse(text: &str) -> Option<Id> {
        let is_digit = |byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        let is_spelled_so = text.len() == 32 && text.bytes().all(is_digit);
        let id = u128::from_str_radix(text, 16).ok().map(Id);
        id.filter(|_| is_spelled_so)
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// One durable fact: one line of the journal.
#[derive(Debug)]
pub struct Record<'a> {
    pub v: u64,
    pub seq: u64,
    /// Version 1 has none. See [`millis`].
    pub time: Option<Cow<'a, str>>,
    pub turn_id: Id,
    pub body: Body<'a>,
}

/// What a record says. The field names are the journal's.
#[derive(Debug)]
pub enum Body<'a> {
    UserMessage {
        text: Cow<'a, str>,
    },
    /// Version 1 only.
    AssistantMessage {
        text: Cow<'a, str>,
    },
    ModelResponse {
        text: Cow<'a, str>,
        output: Vec<&'a RawValue>,
    },
    ToolStart {
        call_id: Cow<'a, str>,
        name: Cow<'a, str>,
        arguments: Cow<'a, str>,
        cwd: Cow<'a, str>,
    },
    ToolResult {
        call_id: Cow<'a, str>,
        result: ToolResult,
    },
    TurnEnd {
        status: TurnStatus,
    },
}

impl Body<'_> {
    /// The journal's name of the kind.
    pub fn kind(&self) -> &'static str {
        match self {
            Body::UserMessage { .. } => "user_message",
            Body::AssistantMessage { .. } => "assistant_message",
            Body::ModelResponse { .. } => "model_response",
            Body::ToolStart { .. } => "tool_start",
            Body::ToolResult { .. } => "tool_result",
            Body::TurnEnd { .. } => "turn_end",
        }
    }
}

/// Why a line is no record.
#[derive(Debug, PartialEq, Eq)]
pub enum Flaw {
    /// No JSON at all: as a last line it is a torn write.
    NotJson,
    /// JSON, and wrong; the reason is one line.
    Wrong(String),
}

impl fmt::Display for Flaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Flaw::NotJson => f.write_str("it is not JSON"),
            Flaw::Wrong(reason) => f.write_str(reason),
        }
    }
}

/// A string that is borrowed from the line where it holds no escapes. (serde borrows through a named
/// type, but not through `Option<Cow<str>>`.)
#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

/// Every field of every kind.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line<'a> {
    v: u64,
    seq: u64,
    #[serde(borrow, default)]
    time: Field<Text<'a>>,
    #[serde(borrow)]
    turn_id: Text<'a>,
    #[serde(borrow)]
    kind: Text<'a>,
    #[serde(borrow, default)]
    text: Field<Text<'a>>,
    #[serde(borrow, default)]
    output: Field<Vec<&'a RawValue>>,
    #[serde(borrow, default)]
    call_id: Field<Text<'a>>,
    #[serde(borrow, default)]
    name: Field<Text<'a>>,
    #[serde(borrow, default)]
    arguments: Field<Text<'a>>,
    #[serde(borrow, default)]
    cwd: Field<Text<'a>>,
    #[serde(default)]
    result: Field<Object>,
    #[serde(default)]
    status: Field<TurnStatus>,
}

/// A field of some kinds. Unlike an `Option` it takes no `null` for a value that is missing.
struct Field<T>(Option<T>);

impl<T> Default for Field<T> {
    fn default() -> Field<T> {
        Field(None)
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Field<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Field<T>, D::Error> {
        T::deserialize(deserializer).map(|value| Field(Some(value)))
    }
}

/// A result. It is an object; serde would take an array of its fields as well.
struct Object(ToolResult);

impl<'de> Deserialize<'de> for Object {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Object, D::Error> {
        struct Map;
        impl<'de> Visitor<'de> for Map {
            type Value = Object;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object as `result`")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Object, A::Error> {
                ToolResult::deserialize(MapAccessDeserializer::new(map)).map(Object)
            }
        }
        deserializer.deserialize_map(Map)
    }
}

impl<'a> Line<'a> {
    /// Takes the fields of the record's kind; `None` where one is missing or the kind is unknown.
    fn take_body(&mut self) -> Option<Body<'a>> {
        Some(match (self.v, self.kind.0.as_ref()) {
            (_, "user_message") => Body::UserMessage { text: self.text.0.take()?.0 },
            (OLD_VERSION, "assistant_message") => Body::AssistantMessage { text: self.text.0.take()?.0 },
            (VERSION, "model_response") => {
                Body::ModelResponse { text: self.text.0.take()?.0, output: self.output.0.take()? }
            }
            (VERSION, "tool_start") => Body::ToolStart {
                call_id: self.call_id.0.take()?.0,
                name: self.name.0.take()?.0,
                arguments: self.arguments.0.take()?.0,
                cwd: self.cwd.0.take()?.0,
            },
            (VERSION, "tool_result") => {
                Body::ToolResult { call_id: self.call_id.0.take()?.0, result: self.result.0.take()?.0 }
            }
            (_, "turn_end") => Body::TurnEnd { status: self.status.0.take()? },
            _ => return None,
        })
    }

    fn has_body(&self) -> bool {
        let texts = [&self.text, &self.call_id, &self.name, &self.arguments, &self.cwd];
        texts.iter().any(|text| text.0.is_some())
            || self.output.0.is_some()
            || self.result.0.is_some()
            || self.status.0.is_some()
    }

    fn check_time(&self) -> Result<(), String> {
        match (self.v, &self.time.0) {
            (OLD_VERSION, None) => Ok(()),
            (OLD_VERSION, Some(_)) => Err("version 1 has no `time`".to_owned()),
            (VERSION, Some(Text(time))) if millis(time).is_some() => Ok(()),
            (VERSION, Some(_)) => Err("`time` is no UTC time with milliseconds".to_owned()),
            (VERSION, None) => Err("`time` is missing".to_owned()),
            (v, _) => Err(foreign_version(v)),
        }
    }
}

impl<'a> Record<'a> {
    /// Reads one line, which comes without its line feed.
    pub fn parse(line: &'a [u8]) -> Result<Record<'a>, Flaw> {
        let line = std::str::from_utf8(line).map_err(|_| Flaw::NotJson)?;
        let parsed = serde_json::from_str(line).map_err(|error| flaw(line, &error))?;
        // serde would take an array of all the fields as well.
        if line.starts_with('{') {
            Record::from_line(parsed).map_err(Flaw::Wrong)
        } else {
            Err(Flaw::Wrong("it does not begin with `{`".to_owned()))
        }
    }

    fn from_line(mut line: Line<'a>) -> Result<Record<'a>, String> {
        line.check_time()?;
        let body = line.take_body().filter(|_| !line.has_body());
        Ok(Record {
            v: line.v,
            seq: line.seq,
            body: body.ok_or("its kind is unknown, or it has not exactly the fields of its kind")?,
            turn_id: Id::parse(&line.turn_id.0).ok_or("`turn_id` is not 32 lowercase hexadecimal digits")?,
            time: line.time.0.map(|Text(time)| time),
        })
    }

    /// The line with its line feed. An error where an item holds a line feed, which would end it.
    pub fn to_line(&self) -> Result<Vec<u8>, String> {
        let mut line = Vec::new();
        self.write(&mut line).map_err(|error| error.to_string())?;
        if line.contains(&b'\n') {
            return Err("an item of the response holds a line feed".to_owned());
        }
        line.extend_from_slice(b"}\n");
        Ok(line)
    }

    fn write(&self, line: &mut Vec<u8>) -> serde_json::Result<()> {
        put(line, "v", &self.v)?;
        put(line, "seq", &self.seq)?;
        if let Some(time) = &self.time {
            put(line, "time", time)?;
        }
        put(line, "turn_id", &self.turn_id.to_string())?;
        put(line, "kind", self.body.kind())?;
        match &self.body {
            Body::UserMessage { text } | Body::AssistantMessage { text } => put(line, "text", text),
            Body::ModelResponse { text, output } => {
                put(line, "text", text)?;
                put(line, "output", output)
            }
            Body::ToolStart { call_id, name, arguments, cwd } => {
                put(line, "call_id", call_id)?;
                put(line, "name", name)?;
                put(line, "arguments", arguments)?;
                put(line, "cwd", cwd)
            }
            Body::ToolResult { call_id, result } => {
                put(line, "call_id", call_id)?;
                put(line, "result", result)
            }
            Body::TurnEnd { status } => put(line, "status", status),
        }
    }
}

/// Appends one field to an object that is not closed yet.
fn put(line: &mut Vec<u8>, name: &str, value: &(impl Serialize + ?Sized)) -> serde_json::Result<()> {
    line.push(if line.is_empty() { b'{' } else { b',' });
    serde_json::to_writer(&mut *line, name)?;
    line.push(b':');
    serde_json::to_writer(line, value)
}

/// Whether a line is a question, without a look at more than its `kind`. The first thing that reads
/// `"kind":"` is the field itself: before it stand numbers, a time and an ID.
pub fn is_question(line: &[u8]) -> bool {
    let (kind, question) = (b"\"kind\":\"", b"user_message\"");
    let at = line.windows(kind.len()).position(|bytes| bytes == kind);
    at.and_then(|at| line.get(at + kind.len()..)).is_some_and(|rest| rest.starts_with(question))
}

/// What is wrong with a line that is no record by itself.
fn flaw(line: &str, error: &serde_json::Error) -> Flaw {
    #[derive(Deserialize)]
    struct Version {
        v: u64,
    }
    if serde_json::from_str::<IgnoredAny>(line).is_err() {
        return Flaw::NotJson;
    }
    // A later version may have other fields; that it is a later one is the better reason.
    match serde_json::from_str(line) {
        Ok(Version { v }) if v != OLD_VERSION && v != VERSION => Flaw::Wrong(foreign_version(v)),
        _ => {
            let reason = error.to_string();
            let reason = reason.split(" at line ").next().unwrap_or_default();
            Flaw::Wrong(text::one_line(reason, ERROR_TEXT_CHARS))
        }
    }
}

fn foreign_version(v: u64) -> String {
    format!("its version is {v}, and this Mino knows {OLD_VERSION} and {VERSION}")
}

/// Milliseconds since 1970 of a `time`, or `None` where it isn't spelled as [`spell_time`] does.
pub fn millis(time: &str) -> Option<u64> {
    let form = b"0000-00-00T00:00:00.000Z";
    let fits = |(byte, form): (u8, &u8)| byte == *form || *form == b'0' && byte.is_ascii_digit();
    if time.len() != form.len() || !time.bytes().zip(form).all(fits) {
        return None;
    }
    let number = |from: usize, to: usize| time.get(from..to)?.parse::<u64>().ok();
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
    let days = days_before_year(year).checked_sub(days_before_year(1970))?;
    let before = month.checked_sub(1)? as usize;
    let length = *month_lengths(year).get(before)?;
    if !(1..=length).contains(&day) || hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    let days_before_month = month_lengths(year).into_iter().take(before).sum::<u64>();
    let hours = (days + days_before_month + day - 1) * 24 + hour;
    Some(((hours * 60 + minute) * 60 + second) * 1000 + number(20, 23)?)
}

/// The `time` of now.
pub fn now() -> String {
    time(SystemTime::now())
}

/// A moment as the journal spells it; one before 1970 counts as 1970.
pub fn time(moment: SystemTime) -> String {
    let since = moment.duration_since(SystemTime::UNIX_EPOCH);
    let millis = since.unwrap_or(Duration::ZERO).as_millis();
    spell_time(u64::try_from(millis).unwrap_or(LAST_MILLIS))
}

/// The end of the year 9999, after which a year has five digits.
const LAST_MILLIS: u64 = 253_402_300_799_999;

/// Milliseconds since 1970 as `2026-01-31T23:59:59.999Z`.
fn spell_time(millis: u64) -> String {
    let millis = millis.min(LAST_MILLIS);
    let (seconds, mut days) = (millis / 1000, millis / 86_400_000);
    // Years of 366 days are too few, and never by more than the leap days that others lack.
    let mut year = 1970 + days / 366;
    while days_before_year(year + 1) - days_before_year(1970) <= days {
        year += 1;
    }
    days -= days_before_year(year) - days_before_year(1970);
    let mut month = 1;
    for length in month_lengths(year) {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    let (hour, minute) = (seconds / 3600 % 24, seconds / 60 % 60);
    let (day, second, milli) = (days + 1, seconds % 60, millis % 1000);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{milli:03}Z")
}

/// Days of the Gregorian calendar from the year 1 to the first day of `year`, which is at least 1.
fn days_before_year(year: u64) -> u64 {
    let past = year.saturating_sub(1);
    past * 365 + past / 4 - past / 100 + past / 400
}

fn month_lengths(year: u64) -> [u64; 12] {
    let february = 28 + days_before_year(year + 1) - days_before_year(year) - 365;
    [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::step::Ran;

    #[test]
    fn times_are_spelled_as_the_calendar_has_them() {
        for (millis, time) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400_001, "2000-02-29T00:00:00.001Z"),
            (1_709_251_199_999, "2024-02-29T23:59:59.999Z"),
            (1_772_355_845_678, "2026-03-01T09:04:05.678Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
            (LAST_MILLIS, "9999-12-31T23:59:59.999Z"),
        ] {
            assert_eq!(spell_time(millis), time);
            assert_eq!(super::millis(time), Some(millis));
        }
        assert_eq!(spell_time(u64::MAX), spell_time(LAST_MILLIS));
        assert!(*now() > *"2026");
        // Every day of four centuries follows the one before.
        let mut last = spell_time(0);
        for day in 1..150_000 {
            let next = spell_time(day * 86_400_000);
            assert!(next > last, "{last} {next}");
            assert_eq!(super::millis(&next), Some(day * 86_400_000));
            last = next;
        }
        assert_eq!(last, "2380-09-07T00:00:00.000Z");
    }

    #[test]
    fn a_time_spelled_otherwise_is_none() {
        for time in [
            "",
            "2026-03-01",
            "2026-03-01T09:04:05Z",
            "2026-03-01T09:04:05.678",
            "2026-03-01t09:04:05.678z",
            "2026-03-01T09:04:05.678+00:00",
            "2026-03-01T09:04:05.6789Z",
            "2026-03-01 09:04:05.678Z",
            "2026-00-01T09:04:05.678Z",
            "2026-13-01T09:04:05.678Z",
            "2026-02-29T09:04:05.678Z",
            "2026-03-00T09:04:05.678Z",
            "2026-03-32T09:04:05.678Z",
            "2026-03-01T24:00:00.000Z",
            "2026-03-01T09:60:00.000Z",
            "2026-03-01T09:04:60.000Z",
            "2026-03-01T09:04:05.+78Z",
            "1969-12-31T23:59:59.999Z",
            "0000-01-01T00:00:00.000Z",
            "２026-03-01T09:04:05.678Z",
        ] {
            assert_eq!(millis(time), None, "{time}");
        }
    }

    #[test]
    fn an_id_has_one_spelling() {
        let id = Id::new().unwrap();
        assert_eq!(Id::parse(&id.to_string()), Some(id));
        for text in
            ["", "1", &"A".repeat(32), &"g".repeat(32), &"1".repeat(33), &format!("+{}", "1".repeat(31))]
        {
            assert_eq!(Id::parse(text), None, "{text}");
        }
    }

    fn record(body: Body<'_>) -> Record<'_> {
        Record { v: 2, seq: 7, time: Some("2026-03-01T09:04:05.678Z".into()), turn_id: Id(0xab), body }
    }

    #[test]
    fn every_kind_is_written_in_the_order_of_the_table_and_read_back() {
        let item: &RawValue = serde_json::from_str(r#"{"type":"message", "n":1.50}"#).unwrap();
        let head = r#"{"v":2,"seq":7,"time":"2026-03-01T09:04:05.678Z","turn_id":"000000000000000000000000000000ab","kind":"#;
        for (body, rest) in [
            (
                Body::UserMessage { text: "a\"\n\u{2028}".into() },
                "\"user_message\",\"text\":\"a\\\"\\n\u{2028}\"}",
            ),
            (
                Body::ModelResponse { text: "t".into(), output: vec![item, item] },
                r#""model_response","text":"t","output":[{"type":"message", "n":1.50},{"type":"message", "n":1.50}]}"#,
            ),
            (
                Body::ToolStart {
                    call_id: "c".into(),
                    name: "bash".into(),
                    arguments: "{}".into(),
                    cwd: "/".into(),
                },
                r#""tool_start","call_id":"c","name":"bash","arguments":"{}","cwd":"/"}"#,
            ),
            (
                Body::ToolResult {
                    call_id: "c".into(),
                    result: ToolResult::ran(Ran::TimedOut, "o", Some(1), true),
                },
                r#""tool_result","call_id":"c","result":{"status":"timed_out","output":"o","exit_code":1,"truncated":true}}"#,
            ),
            (Body::TurnEnd { status: TurnStatus::Failed }, r#""turn_end","status":"failed"}"#),
        ] {
            let line = record(body).to_line().unwrap();
            assert_eq!(String::from_utf8(line.clone()).unwrap(), format!("{head}{rest}\n"));
            let read = Record::parse(line.strip_suffix(b"\n").unwrap()).unwrap();
            assert_eq!(read.to_line().unwrap(), line);
        }
    }

    #[test]
    fn a_text_without_escapes_is_not_copied() {
        let line = record(Body::UserMessage { text: "plain 世界".into() }).to_line().unwrap();
        let read = Record::parse(line.strip_suffix(b"\n").unwrap()).unwrap();
        assert!(matches!(read.body, Body::UserMessage { text: Cow::Borrowed("plain 世界") }));
    }

    /// Whatever a line is turned into, it is read, or refused with a reason of one line.
    #[test]
    fn no_damage_to_a_line_is_worse_than_a_refusal() {
        let line = record(Body::ToolResult {
            call_id: "c\u{1}".into(),
            result: ToolResult::ran(Ran::Failed, "世界 \"\\\n", Some(-1), true),
        });
        let line = line.to_line().unwrap();
        let line = line.strip_suffix(b"\n").unwrap();
        let seed = 0x2545_f491_4f6c_dd1d_u64;
        let mut state = seed;
        let mut random = |below: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state % below as u64) as usize
        };
        let mut read = 0;
        for _ in 0..20_000 {
            let mut damaged = line.to_vec();
            for _ in 0..=random(2) {
                let at = random(damaged.len());
                match random(4) {
                    0 => damaged[at] ^= 1 << random(8),
                    1 => damaged[at] = b"{}[]\",:\\0nu"[random(11)],
                    2 => damaged.truncate(at.max(1)),
                    _ => damaged.insert(at, random(256) as u8),
                }
            }
            match Record::parse(&damaged) {
                Ok(record) => {
                    read += 1;
                    let again = record.to_line().unwrap();
                    Record::parse(again.strip_suffix(b"\n").unwrap()).unwrap();
                }
                Err(flaw) => {
                    let reason = flaw.to_string();
                    assert!(!reason.contains(char::is_control), "seed {seed:#x}: {reason}");
                }
            }
        }
        assert!(read > 100, "seed {seed:#x}: {read}");
    }
}
