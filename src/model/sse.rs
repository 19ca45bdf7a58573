//! Bytes to events, by the rules of the WHATWG event-stream format.
//!
//! Owns: lines, fields and the size of an event; no meaning is attached to any of it. Promises: the
//! events depend on the bytes alone, not on how they were cut into reads; every byte is looked at
//! once, so a long line that arrives in small pieces costs no more than a short one; nothing grows
//! beyond `EVENT_BYTES`. Leans on nothing. Gives up: `id` and `retry`, as no stream is resumed.

use crate::limits::{EVENT_BYTES, READ_BYTES};

/// One event. Its `data` may be changed in place, since nobody looks at it again.
#[derive(Debug)]
pub struct Event<'a> {
    /// The `event` field; empty where there is none.
    pub name: &'a [u8],
    /// The `data` fields, joined by newlines.
    pub data: &'a mut [u8],
}

/// One event, or one line of it, of more than `EVENT_BYTES`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLong;

/// The line and the event that are still arriving.
#[derive(Debug, Default)]
pub struct Frames {
    line: Vec<u8>,
    name: Vec<u8>,
    data: Vec<u8>,
    /// A `data` field came, even if an empty one: without it there is no event.
    has_data: bool,
    /// The first line is over, and with it the only place for a byte order mark.
    started: bool,
    /// The last line ended in CR, so an LF that comes next belongs to it.
    after_cr: bool,
    /// The event was handed out, so the next call begins with an empty one.
    handed_out: bool,
}

impl Frames {
    pub fn new() -> Frames {
        Frames::default()
    }

    /// The next event of `input`, which is advanced behind it; `None` once all of `input` is taken.
    pub fn next(&mut self, input: &mut &[u8]) -> Result<Option<Event<'_>>, TooLong> {
        self.forget_handed_out();
        while let Some((&first, after_first)) = input.split_first() {
            if std::mem::take(&mut self.after_cr) && first == b'\n' {
                *input = after_first;
                continue;
            }
            let end = line_end(input);
            let (piece, rest) = input.split_at(end.unwrap_or(input.len()));
            if self.line.len() + self.data.len() + piece.len() > EVENT_BYTES {
                return Err(TooLong);
            }
            let Some((&terminator, rest)) = rest.split_first() else {
                self.line.extend_from_slice(piece);
                *input = rest;
                break;
            };
            *input = rest;
            self.after_cr = terminator == b'\r';
            if self.end_line(piece) && self.has_data {
                return Ok(Some(self.hand_out()));
            }
        }
        Ok(None)
    }

    /// What the stream ended on: an event without the blank line that should follow it. The format
    /// discards it; real servers do end that way, so the caller looks whether it is whole.
    pub fn finish(&mut self) -> Option<Event<'_>> {
        self.forget_handed_out();
        self.end_line(&[]);
        self.has_data.then(|| self.hand_out())
    }

    fn hand_out(&mut self) -> Event<'_> {
        self.handed_out = true;
        Event { name: &self.name, data: &mut self.data }
    }

    fn forget_handed_out(&mut self) {
        if std::mem::take(&mut self.handed_out) {
            self.name.clear();
            empty(&mut self.data);
            self.has_data = false;
        }
    }

    /// Takes the line that `piece` ends; whether it is a blank one, which ends the event.
    fn end_line(&mut self, piece: &[u8]) -> bool {
        if self.line.is_empty() {
            return self.field(piece);
        }
        let mut line = std::mem::take(&mut self.line);
        line.extend_from_slice(piece);
        let blank = self.field(&line);
        empty(&mut line);
        self.line = line;
        blank
    }

    fn field(&mut self, line: &[u8]) -> bool {
        let first = !std::mem::replace(&mut self.started, true);
        let line = match line.strip_prefix(b"\xef\xbb\xbf") {
            Some(rest) if first => rest,
            _ => line,
        };
        let colon = line.iter().position(|&byte| byte == b':');
        let (name, value) = line.split_at(colon.unwrap_or(line.len()));
        let value = value.strip_prefix(b":").unwrap_or(value);
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match name {
            b"data" => {
                if std::mem::replace(&mut self.has_data, true) {
                    self.data.push(b'\n');
                }
                self.data.extend_from_slice(value);
            }
            b"event" => {
                self.name.clear();
                self.name.extend_from_slice(value);
            }
            // A comment has an empty name; other fields mean nothing here.
            _ => {}
        }
        if line.is_empty() && !self.has_data {
            self.name.clear();
        }
        line.is_empty()
    }
}

/// Forgets what is in it, and its memory too where that was an unusual lot.
fn empty(bytes: &mut Vec<u8>) {
    bytes.clear();
    bytes.shrink_to(READ_BYTES);
}

/// Where the first CR or LF is. Eight bytes at a time, since this looks at every byte of a stream.
fn line_end(bytes: &[u8]) -> Option<usize> {
    let (words, _) = bytes.as_chunks();
    let without = |word: &&[u8; 8]| {
        let word = u64::from_ne_bytes(**word);
        !has_byte(word, b'\n') && !has_byte(word, b'\r')
    };
    let skipped = words.iter().take_while(without).count() * 8;
    let rest = bytes.get(skipped..)?.iter();
    let at = rest.take_while(|byte| !matches!(byte, b'\n' | b'\r')).count();
    Some(skipped + at).filter(|at| *at < bytes.len())
}

/// Whether one of the eight bytes is `byte`: then one of them is zero after the exclusive or, and
/// only below a zero does the subtraction borrow into a high bit that was not set.
fn has_byte(word: u64, byte: u8) -> bool {
    const LOW: u64 = u64::from_ne_bytes([1; 8]);
    const HIGH: u64 = LOW << 7;
    let word = word ^ (LOW * u64::from(byte));
    word.wrapping_sub(LOW) & !word & HIGH != 0
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::time::{SystemTime, UNIX_EPOCH};

    /// Small numbers that look random and can be had again from their seed (xorshift64).
    pub struct Random(pub u64);

    impl Random {
        #[allow(clippy::print_stdout, reason = "shown where a test fails, to run it again")]
        pub fn seed() -> u64 {
            let seed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64 | 1;
            println!("seed {seed}");
            seed
        }

        pub fn below(&mut self, end: usize) -> usize {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            (self.0 % end as u64) as usize
        }
    }

    type Found = Vec<(String, String)>;

    /// The events of the pieces, and last what the stream ended on.
    fn frame<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Found {
        let (mut frames, mut found) = (Frames::new(), Vec::new());
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        for mut piece in pieces {
            while let Some(event) = frames.next(&mut piece).unwrap() {
                found.push((text(event.name), text(event.data)));
            }
            assert!(piece.is_empty());
        }
        if let Some(event) = frames.finish() {
            found.push((format!("end:{}", text(event.name)), text(event.data)));
        }
        found
    }

    /// The same by the plainest means, for streams without a byte order mark.
    fn plainly(stream: &[u8]) -> Found {
        let stream = String::from_utf8_lossy(stream).replace("\r\n", "\n").replace('\r', "\n");
        let (mut found, mut name, mut data) = (Vec::new(), String::new(), None::<String>);
        let lines: Vec<&str> = stream.split('\n').collect();
        let last = lines.len() - 1;
        for (at, line) in lines.into_iter().enumerate() {
            let (field, value) = line.split_once(':').unwrap_or((line, ""));
            let value = value.strip_prefix(' ').unwrap_or(value);
            match field {
                "data" => match &mut data {
                    Some(data) => *data += &format!("\n{value}"),
                    None => data = Some(value.into()),
                },
                "event" => name = value.into(),
                _ => {}
            }
            if line.is_empty() || at == last {
                let end = if at == last { "end:" } else { "" };
                found.extend(data.take().map(|data| (format!("{end}{name}"), data)));
                name.clear();
            }
        }
        found
    }

    fn event(name: &str, data: &str) -> (String, String) {
        (name.into(), data.into())
    }

    #[test]
    fn frames_follow_the_format() {
        for (stream, expected) in [
            ("data: a\n\n", vec![event("", "a")]),
            ("data:a\r\n\r\n", vec![event("", "a")]),
            ("data: a\r\r", vec![event("", "a")]),
            ("data:  a \n\n", vec![event("", " a ")]),
            ("\u{feff}data: a\n\n", vec![event("", "a")]),
            ("\u{feff}\u{feff}data: a\n\n", vec![]),
            ("data: a\n\n\u{feff}data: b\n\n", vec![event("", "a")]),
            (": c\n:\ndata: a\n: c\n\n:c\n\n", vec![event("", "a")]),
            ("data: a\ndata:b\ndata\ndata: c\n\n", vec![event("", "a\nb\n\nc")]),
            ("event: x\ndata: a\n\ndata: b\n\n", vec![event("x", "a"), event("", "b")]),
            ("event: x\n\ndata: b\n\n", vec![event("", "b")]),
            ("event: x\nevent: y\ndata: b\n\n", vec![event("y", "b")]),
            ("id: 1\nretry: 5\ndatas: x\n data: y\ndata: b\n\n", vec![event("", "b")]),
            ("data:\n\ndata\n\n", vec![event("", ""), event("", "")]),
            ("data: a\n\r\ndata: b\r\n\n", vec![event("", "a"), event("", "b")]),
            ("data: a", vec![event("end:", "a")]),
            ("event: x\ndata: a\n", vec![event("end:x", "a")]),
            ("event: x\n", vec![]),
            ("\n\r\n\r", vec![]),
            ("", vec![]),
        ] {
            assert_eq!(frame([stream.as_bytes()]), expected, "{stream:?}");
        }
    }

    #[test]
    fn every_fixture_split_at_every_byte_gives_the_same_events() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/sse");
        let mut count = 0;
        for file in std::fs::read_dir(folder).unwrap() {
            let path = file.unwrap().path();
            if path.extension().is_none_or(|it| it != "sse") {
                continue;
            }
            count += 1;
            let stream = std::fs::read(&path).unwrap();
            let whole = frame([&stream[..]]);
            assert!(whole.len() > 1 && whole == plainly(&stream), "{}", path.display());
            assert_eq!(frame(stream.chunks(1)), whole, "{}", path.display());
            for cut in 0..stream.len() {
                let (left, right) = stream.split_at(cut);
                assert_eq!(frame([left, right]), whole, "{} at {cut}", path.display());
            }
        }
        assert!(count >= 20);
    }

    #[test]
    fn any_bytes_are_framed_as_by_the_plainest_reader_and_any_split_alike() {
        let seed = Random::seed();
        let mut random = Random(seed);
        let tokens: [&[u8]; 14] = [
            b"data",
            b"event",
            b":",
            b": ",
            b"\n",
            b"\r",
            b"\r\n",
            b"\n\n",
            b"data: x\n",
            b"{\"a\":1}",
            b"\xe4\xb8",
            b"\xad",
            b"id",
            b" ",
        ];
        for round in 0..3_000 {
            let mut stream = b"\n".to_vec();
            for _ in 0..random.below(40) {
                stream.extend_from_slice(tokens[random.below(tokens.len())]);
            }
            let whole = plainly(&stream);
            assert_eq!(frame([&stream[..]]), whole, "seed {seed}, round {round}");
            let mut pieces = Vec::new();
            let mut rest = &stream[..];
            while !rest.is_empty() {
                let (piece, after) = rest.split_at(random.below(rest.len().min(9) + 1));
                pieces.push(piece);
                rest = after;
            }
            assert_eq!(frame(pieces), whole, "seed {seed}, round {round}");
        }
    }

    #[test]
    fn an_event_may_have_its_limit_and_not_a_byte_more() {
        let whole = |bytes: usize| [b"data:", &vec![b'a'; bytes - 5][..], b"\n\n"].concat();
        let (fits, too_long) = (whole(EVENT_BYTES), whole(EVENT_BYTES + 1));
        let next = |stream: &[u8]| {
            let (mut frames, mut input) = (Frames::new(), stream);
            frames.next(&mut input).map(|event| event.map(|event| event.data.len()))
        };
        assert_eq!(next(&fits), Ok(Some(EVENT_BYTES - 5)));
        assert_eq!(next(&too_long), Err(TooLong));
        // Also where it is spread over lines that are short, and where no line ever ends.
        let line = [b"data:", &[b'a'; 1 << 20][..], b"\n"].concat();
        let mut frames = Frames::new();
        let results: Vec<_> =
            (0..17).map(|_| frames.next(&mut &line[..]).map(|event| event.is_some())).collect();
        assert!(results[..15].iter().all(|result| *result == Ok(false)));
        assert_eq!(results[16], Err(TooLong));
        assert_eq!(next(&vec![b':'; EVENT_BYTES + 1]), Err(TooLong));
    }

    #[test]
    fn a_line_ends_at_its_first_cr_or_lf_wherever_that_is() {
        for end in [b'\n', b'\r'] {
            for at in 0..40 {
                let mut bytes = [vec![0x8d; at], vec![end], vec![b'\n'; 20]].concat();
                assert_eq!(line_end(&bytes), Some(at));
                bytes.truncate(at);
                assert_eq!(line_end(&bytes), None);
            }
        }
    }

    #[test]
    fn a_large_event_leaves_no_memory_behind() {
        let stream = [b"data:", &vec![b'a'; 3 << 20][..], b"\n\n"].concat();
        let mut frames = Frames::new();
        for mut piece in stream.chunks(READ_BYTES) {
            while frames.next(&mut piece).unwrap().is_some() {}
        }
        assert!(frames.line.capacity() + frames.data.capacity() <= 2 * READ_BYTES);
    }

    #[test]
    fn a_long_line_in_tiny_reads_is_looked_at_once() {
        // Were the line searched anew with each read, this would take minutes.
        let stream = [b"data:", &vec![b'a'; 3 << 20][..], b"\n\n"].concat();
        let found = frame(stream.chunks(3));
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].1.len(), 3 << 20);
    }
}
