//! The line being edited: keys, text, cursor, history, and how it lies on a screen. Pure.
//!
//! Owns: what the bytes of a terminal mean as keys, what each key does to the text, and where the
//! text breaks into rows. Promises: what is edited never acts on the terminal (it is drawn as clean
//! text, with a tab as spaces); the cursor moves by what a person sees as one character; nothing is
//! cut in silence (a line with bytes that are not UTF-8, or too long, remembers its [`Bad`]). Of a
//! paste and of typing, control characters other than newline and tab are left out, since a person
//! could not see what is sent in their name, and CR and CRLF become newlines, which they were before
//! the terminal changed them. Leans on the standard library's table of marks (Grapheme_Extend, seen
//! through `escape_debug`) and on Unicode 16's East Asian Width. Gives up: no terminal is asked how
//! wide it draws a character. Joined emoji count as their parts, which is the widest any terminal
//! makes them: a row may then break early, but never runs over.

use std::borrow::Cow;
use std::fmt;

use crate::{limits, text};

const ESC: u8 = 0x1b;
const JOINER: char = '\u{200d}';
/// A tab's width on screen: fixed, so that it is the same wherever a row breaks.
const TAB: &str = "    ";

/// Why a line can't be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bad {
    NotUtf8,
    TooLong,
    /// As long as the terminal driver lets a line be, so it may have dropped the rest.
    MaybeCut,
}

impl fmt::Display for Bad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Bad::NotUtf8 => write!(f, "cannot use the line: it is not valid UTF-8"),
            Bad::TooLong => write!(f, "cannot use the line: it is longer than {} bytes", limits::LINE_BYTES),
            Bad::MaybeCut => write!(
                f,
                "cannot use the line: the terminal may have cut it at {} bytes",
                limits::DRIVER_LINE_BYTES
            ),
        }
    }
}

impl std::error::Error for Bad {}

impl Bad {
    pub fn hint(self) -> &'static str {
        match self {
            Bad::NotUtf8 => "set the terminal to UTF-8, or convert the text, and send the line again",
            Bad::TooLong => "put the text into a file and ask about the file",
            Bad::MaybeCut => "put the text into a file and run: mino ask - < FILE",
        }
    }
}

// --- keys -----------------------------------------------------------------------------------

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    Char(char),
    /// A byte that belongs to no character.
    NotText,
    Enter,
    Left,
    Right,
    Older,
    Newer,
    Home,
    End,
    Backspace,
    Delete,
    KillBefore,
    KillAfter,
    KillWord,
    ClearScreen,
    EndOfInput,
    Interrupt,
    Suspend,
    PasteStart,
    /// A whole key that means nothing here.
    Unknown,
}

/// The first key of `bytes` and how many of them it takes; none if its end has not come yet.
///
/// Sequences are those of xterm, its relatives and the Linux console (console_codes(4)).
pub fn first_key(bytes: &[u8]) -> Option<(Key, usize)> {
    match bytes {
        [] => None,
        [ESC, rest @ ..] => escape(rest).map(|(key, length)| (key, length + 1)),
        [b'\r', b'\n', ..] => Some((Key::Enter, 2)),
        [byte @ (..0x20 | 0x7f), ..] => Some((control(*byte), 1)),
        _ => character(bytes),
    }
}

fn control(byte: u8) -> Key {
    match byte {
        b'\t' => Key::Char('\t'),
        b'\r' | b'\n' => Key::Enter,
        0x01 => Key::Home,
        0x02 => Key::Left,
        0x03 => Key::Interrupt,
        0x04 => Key::EndOfInput,
        0x05 => Key::End,
        0x06 => Key::Right,
        0x08 | 0x7f => Key::Backspace,
        0x0b => Key::KillAfter,
        0x0c => Key::ClearScreen,
        0x0e => Key::Newer,
        0x10 => Key::Older,
        0x15 => Key::KillBefore,
        0x17 => Key::KillWord,
        0x1a => Key::Suspend,
        _ => Key::Unknown,
    }
}

fn character(bytes: &[u8]) -> Option<(Key, usize)> {
    let head = bytes.get(..bytes.len().min(4))?;
    let chunk = head.utf8_chunks().next()?;
    if let Some(c) = chunk.valid().chars().next() {
        let key = if c.is_control() { Key::Unknown } else { Key::Char(c) };
        return Some((key, c.len_utf8()));
    }
    let is_begun = matches!(std::str::from_utf8(head), Err(error) if error.error_len().is_none());
    (!is_begun).then_some((Key::NotText, chunk.invalid().len()))
}

/// What follows ESC. Ctrl+Left and its like move as the plain arrow does; ESC Enter breaks the line.
fn escape(rest: &[u8]) -> Option<(Key, usize)> {
    match rest {
        [] => None,
        [ESC, ..] => Some((Key::Unknown, 0)),
        [b'\r' | b'\n', ..] => Some((Key::Char('\n'), 1)),
        // The Linux console's function keys.
        [b'[', b'[', rest @ ..] => rest.first().map(|_| (Key::Unknown, 3)),
        [b'[', rest @ ..] => control_sequence(rest).map(|(key, length)| (key, length + 1)),
        [b'O', rest @ ..] => rest.first().map(|last| (named_by(*last), 2)),
        [b']' | b'P' | b'X' | b'^' | b'_', rest @ ..] => {
            answer_end(rest).map(|length| (Key::Unknown, length + 1))
        }
        _ => first_key(rest).map(|(_, length)| (Key::Unknown, length)),
    }
}

fn control_sequence(bytes: &[u8]) -> Option<(Key, usize)> {
    let seen = bytes.get(..bytes.len().min(limits::KEY_BYTES))?;
    let Some(at) = seen.iter().position(|byte| !(0x20..0x40).contains(byte)) else {
        return (seen.len() == limits::KEY_BYTES).then_some((Key::Unknown, seen.len()));
    };
    let (parameters, last) = seen.split_at_checked(at)?;
    Some(match (parameters, *last.first()?) {
        (b"1" | b"7", b'~') => (Key::Home, at + 1),
        (b"4" | b"8", b'~') => (Key::End, at + 1),
        (b"3", b'~') => (Key::Delete, at + 1),
        (b"200", b'~') => (Key::PasteStart, at + 1),
        (_, last @ 0x40..0x7f) => (named_by(last), at + 1),
        // A sequence broken off by another key, which is left to be read.
        _ => (Key::Unknown, at),
    })
}

fn named_by(last: u8) -> Key {
    match last {
        b'A' => Key::Older,
        b'B' => Key::Newer,
        b'C' => Key::Right,
        b'D' => Key::Left,
        b'F' => Key::End,
        b'H' => Key::Home,
        _ => Key::Unknown,
    }
}

/// Where a terminal's answer to a query (a string that ends with BEL or ESC \) ends.
fn answer_end(bytes: &[u8]) -> Option<usize> {
    let seen = bytes.get(..bytes.len().min(limits::KEY_BYTES))?;
    let bell = seen.iter().position(|byte| *byte == 0x07).map(|at| at + 1);
    let string = seen.windows(2).position(|two| two == [ESC, b'\\']).map(|at| at + 2);
    let end = bell.into_iter().chain(string).min();
    end.or((seen.len() == limits::KEY_BYTES).then_some(seen.len()))
}

// --- the text -------------------------------------------------------------------------------

/// One line (which may have several, by paste) with the cursor between its two halves.
#[derive(Clone, Debug, Default)]
pub struct Edit {
    before: String,
    after: String,
    bad: Option<Bad>,
    /// How far back in the history the text comes from; 0 is the person's own.
    recalled: usize,
    /// The person's own text, and what is wrong with it, while the history is looked at.
    own: (String, Option<Bad>),
}

impl Edit {
    pub fn is_empty(&self) -> bool {
        self.before.is_empty() && self.after.is_empty()
    }

    /// The whole text, or why it can't be taken.
    pub fn finish(mut self) -> Result<String, Bad> {
        self.go_to_end();
        match self.bad {
            None => Ok(self.before),
            Some(bad) => Err(bad),
        }
    }

    /// Puts the cursor behind the whole text.
    pub fn go_to_end(&mut self) {
        self.before.push_str(&std::mem::take(&mut self.after));
    }

    /// Has the line end as `bad`, unless all of it is deleted.
    pub fn refuse(&mut self, bad: Bad) {
        self.bad = Some(bad);
    }

    pub fn insert(&mut self, text: &str) {
        if self.before.len() + self.after.len() + text.len() > limits::LINE_BYTES {
            self.bad = Some(Bad::TooLong);
        } else {
            self.before.push_str(text);
        }
    }

    /// Inserts what was pasted, as text whatever it holds.
    pub fn paste(&mut self, bytes: &[u8]) {
        let text = String::from_utf8_lossy(bytes);
        if let Cow::Owned(_) = text {
            self.bad = Some(Bad::NotUtf8);
        }
        let mut text = text.replace("\r\n", "\n").replace('\r', "\n");
        text.retain(|c| !c.is_control() || matches!(c, '\n' | '\t'));
        self.insert(&text);
    }

    /// What `key` does to the text; keys that do something else are the caller's.
    pub fn press(&mut self, key: Key, history: &[String]) {
        match key {
            Key::Char(c) => self.insert(c.encode_utf8(&mut [0; 4])),
            Key::NotText => {
                self.insert("\u{fffd}");
                self.bad = Some(Bad::NotUtf8);
            }
            Key::Left => self.back_to(last_unit(&self.before)),
            Key::Right => self.forward(first_unit(&self.after)),
            Key::Home => self.back_to(self.line_start()),
            Key::End => self.forward(self.line_end()),
            Key::Backspace => self.before.truncate(last_unit(&self.before)),
            Key::Delete | Key::EndOfInput => drop(self.after.drain(..first_unit(&self.after))),
            Key::KillWord => self.before.truncate(word_start(&self.before)),
            // At the very start or end of a line, these take the line break.
            Key::KillBefore => {
                let start = self.line_start();
                let start = if start == self.before.len() { start.saturating_sub(1) } else { start };
                self.before.truncate(start);
            }
            Key::KillAfter => {
                let end = self.line_end().max(usize::from(!self.after.is_empty()));
                drop(self.after.drain(..end));
            }
            Key::Older => self.recall(self.recalled + 1, history),
            Key::Newer if self.recalled > 0 => self.recall(self.recalled - 1, history),
            _ => {}
        }
        if self.is_empty() {
            self.bad = None;
        }
    }

    fn back_to(&mut self, at: usize) {
        let moved = self.before.split_off(at);
        self.after.insert_str(0, &moved);
    }

    fn forward(&mut self, length: usize) {
        self.before.extend(self.after.drain(..length));
    }

    fn line_start(&self) -> usize {
        self.before.rfind('\n').map_or(0, |at| at + 1)
    }

    fn line_end(&self) -> usize {
        self.after.find('\n').unwrap_or(self.after.len())
    }

    /// Shows the question that is `back` from the newest; 0 is the person's own, unfinished one.
    fn recall(&mut self, back: usize, history: &[String]) {
        let (text, bad) = match back.checked_sub(1) {
            None => std::mem::take(&mut self.own),
            Some(back) => match history.iter().rev().nth(back) {
                Some(text) => (text.clone(), None),
                None => return,
            },
        };
        self.go_to_end();
        let left = std::mem::replace(&mut self.before, text);
        let left = (left, std::mem::replace(&mut self.bad, bad));
        if self.recalled == 0 {
            self.own = left;
        }
        self.recalled = back;
    }
}

fn word_start(text: &str) -> usize {
    text.trim_end().trim_end_matches(|c: char| !c.is_whitespace()).len()
}

// --- the screen -----------------------------------------------------------------------------

/// The part of a prompt and a line that a screen has room for.
#[derive(Debug, PartialEq, Eq)]
pub struct View {
    /// What to write, without line ends; each fits the columns.
    pub rows: Vec<String>,
    /// The row of the cursor.
    pub cursor: usize,
    /// The part of that row before the cursor.
    pub lead: String,
}

impl View {
    /// What to write to show all rows. A full row is left to the terminal to fold, so that what
    /// stands there is one line to whoever copies it.
    pub fn text(&self, columns: usize) -> String {
        let mut rows = self.rows.iter().peekable();
        let mut text = String::new();
        while let Some(row) = rows.next() {
            text.push_str(row);
            match rows.peek() {
                Some(next) if next.is_empty() || row_columns(row) < columns => text.push_str("\r\n"),
                _ => {}
            }
        }
        text
    }

    /// Whether the cursor is behind everything that is shown.
    pub fn at_end(&self) -> bool {
        self.cursor + 1 >= self.rows.len() && self.rows.last() == Some(&self.lead)
    }
}

fn row_columns(mut row: &str) -> usize {
    let mut columns = 0;
    while let Some((unit, tail)) = row.split_at_checked(first_unit(row))
        && !unit.is_empty()
    {
        columns += width(unit);
        row = tail;
    }
    columns
}

impl Edit {
    /// Breaks the text into rows and picks those around the cursor that fit. `done`: nothing will be
    /// typed any more, so a full last row needs none after it for the cursor.
    ///
    /// Costs a screenful and [`limits::VIEW_BYTES`], however long the text is: of a longer one the
    /// part before that is left out, in steps, so that rows don't shift with each key.
    pub fn view(&self, prompt: &str, columns: usize, height: usize, done: bool) -> View {
        let skipped = (self.before.len() / limits::VIEW_BYTES).saturating_sub(1) * limits::VIEW_BYTES;
        let start = self.before.floor_char_boundary(skipped);
        let mut page = Page::new(columns);
        if start == 0 {
            page.put(prompt, usize::MAX);
            page.indent = if page.column <= columns / 2 { page.column } else { 0 };
        }
        page.put(self.before.get(start..).unwrap_or_default(), usize::MAX);
        if page.column >= columns && !done {
            page.break_row(0);
        }
        let (cursor, lead) = (page.done.len(), page.row.clone());
        page.put(&self.after, cursor + height);
        let mut rows = page.done;
        rows.push(page.row);
        let top = cursor.saturating_sub(height / 2).min(rows.len().saturating_sub(height));
        View { rows: rows.into_iter().skip(top).take(height).collect(), cursor: cursor - top, lead }
    }
}

/// Rows as they fill up.
struct Page {
    done: Vec<String>,
    row: String,
    column: usize,
    columns: usize,
    /// Where a line after a line break begins.
    indent: usize,
}

impl Page {
    fn new(columns: usize) -> Page {
        Page { done: Vec::new(), row: String::new(), column: 0, columns, indent: 0 }
    }

    /// Adds text until `last` rows are full.
    fn put(&mut self, text: &str, last: usize) {
        let mut rest = text;
        while !rest.is_empty() && self.done.len() < last {
            let (unit, tail) = rest.split_at_checked(first_unit(rest)).unwrap_or((rest, ""));
            let shown = shown(unit);
            if shown == "\n" {
                self.break_row(self.indent);
            } else {
                self.add(&shown);
            }
            rest = tail;
        }
    }

    fn add(&mut self, unit: &str) {
        let width = width(unit);
        if self.column + width > self.columns && self.column > 0 {
            self.break_row(0);
        }
        self.row.push_str(unit);
        self.column += width;
    }

    fn break_row(&mut self, indent: usize) {
        self.done.push(std::mem::replace(&mut self.row, " ".repeat(indent)));
        self.column = indent;
    }
}

/// A unit as it may be written to a terminal.
fn shown(unit: &str) -> Cow<'_, str> {
    match unit.as_bytes() {
        b"\t" => TAB.into(),
        [b'\n' | b' '..=b'~'] => unit.into(),
        _ => text::clean(unit).into(),
    }
}

// --- characters -----------------------------------------------------------------------------

/// The length of the first unit: a character with the marks, joiners and joined characters that
/// follow it, or two regional indicators (a flag).
fn first_unit(text: &str) -> usize {
    if let [first, second, ..] = text.as_bytes()
        && first.is_ascii()
        && second.is_ascii()
    {
        return 1;
    }
    let mut chars = text.char_indices();
    let mut previous = chars.next().map_or('\0', |(_, c)| c);
    let mut is_half_flag = is_flag_letter(previous);
    for (at, c) in chars {
        let is_flag = is_half_flag && is_flag_letter(c);
        let is_joined = extends(c) || previous == JOINER && !c.is_ascii() || is_flag;
        if previous.is_control() || !is_joined {
            return at;
        }
        is_half_flag &= !is_flag;
        previous = c;
    }
    text.len()
}

/// Where the last unit begins: found forwards from the nearest character that surely begins one.
fn last_unit(text: &str) -> usize {
    let begins = |(at, c): &(usize, char)| {
        let is_joined = text.get(..*at).is_some_and(|head| head.ends_with(JOINER));
        !extends(*c) && !is_flag_letter(*c) && !is_joined
    };
    let mut start = text.char_indices().rev().find(begins).map_or(0, |(at, _)| at);
    while let Some(tail) = text.get(start..)
        && first_unit(tail) < tail.len()
    {
        start += first_unit(tail);
    }
    start
}

fn is_flag_letter(c: char) -> bool {
    matches!(c, '\u{1f1e6}'..='\u{1f1ff}')
}

/// Whether `c` is part of the character before it, or can't be seen at all.
fn extends(c: char) -> bool {
    match c {
        '\0'..='\u{7f}' | '\u{3400}'..='\u{9fff}' | '\u{ac00}'..='\u{d7a3}' => false,
        JOINER | '\u{1160}'..='\u{11ff}' | '\u{d7b0}'..='\u{d7ff}' | '\u{1f3fb}'..='\u{1f3ff}' => true,
        c if c.escape_debug().len() == 1 => false,
        c => is_mark(c) || text::clean(c.encode_utf8(&mut [0; 4])).is_empty(),
    }
}

/// Grapheme_Extend: the standard library escapes such a character alone, but not after a letter.
fn is_mark(c: char) -> bool {
    c.escape_debug().len() > 1 && String::from_iter(['x', c]).escape_debug().count() == 2
}

/// The columns that a unit takes. An emoji selector may widen what it follows, or not: it counts.
fn width(unit: &str) -> usize {
    let sum = unit.chars().map(columns_of).sum();
    if sum == 1 && unit.contains('\u{fe0f}') { 2 } else { sum }
}

fn columns_of(c: char) -> usize {
    match c {
        ' '..='~' => 1,
        JOINER | '\u{200c}' | '\u{1160}'..='\u{11ff}' | '\u{d7b0}'..='\u{d7ff}' => 0,
        c if is_mark(c) && !is_spacing(c) => 0,
        c if is_wide(c) => 2,
        _ => 1,
    }
}

/// Marks of Indic scripts, and of halfwidth Katakana, that stand beside their letter.
fn is_spacing(c: char) -> bool {
    matches!(c,
        '\u{9be}' | '\u{9d7}' | '\u{b3e}' | '\u{b57}' | '\u{bbe}' | '\u{bd7}' | '\u{cc0}'..='\u{cc8}'
        | '\u{cca}' | '\u{ccb}' | '\u{cd5}' | '\u{cd6}' | '\u{d3e}' | '\u{d57}' | '\u{dcf}' | '\u{ddf}'
        | '\u{1715}' | '\u{1734}' | '\u{1b35}'..='\u{1b44}' | '\u{1baa}' | '\u{1bf2}' | '\u{1bf3}'
        | '\u{a953}' | '\u{a9c0}' | '\u{ff9e}' | '\u{ff9f}')
}

/// East Asian Width W and F, with unassigned neighbours. Among the emoji blocks the few narrow
/// characters count as wide too: most are drawn so.
fn is_wide(c: char) -> bool {
    matches!(c,
        '\u{1100}'..='\u{115f}' | '\u{231a}' | '\u{231b}' | '\u{2329}' | '\u{232a}' | '\u{23e9}'..='\u{23ec}'
        | '\u{23f0}' | '\u{23f3}' | '\u{25fd}' | '\u{25fe}' | '\u{2614}' | '\u{2615}' | '\u{2630}'..='\u{2637}'
        | '\u{2648}'..='\u{2653}' | '\u{267f}' | '\u{268a}'..='\u{268f}' | '\u{2693}' | '\u{26a1}' | '\u{26aa}'
        | '\u{26ab}' | '\u{26bd}' | '\u{26be}' | '\u{26c4}' | '\u{26c5}' | '\u{26ce}' | '\u{26d4}' | '\u{26ea}'
        | '\u{26f2}' | '\u{26f3}' | '\u{26f5}' | '\u{26fa}' | '\u{26fd}' | '\u{2705}' | '\u{270a}' | '\u{270b}'
        | '\u{2728}' | '\u{274c}' | '\u{274e}' | '\u{2753}'..='\u{2755}' | '\u{2757}' | '\u{2795}'..='\u{2797}'
        | '\u{27b0}' | '\u{27bf}' | '\u{2b1b}' | '\u{2b1c}' | '\u{2b50}' | '\u{2b55}' | '\u{2e80}'..='\u{303e}'
        | '\u{3041}'..='\u{3247}' | '\u{3250}'..='\u{a4cf}' | '\u{a960}'..='\u{a97f}' | '\u{ac00}'..='\u{d7a3}'
        | '\u{f900}'..='\u{faff}' | '\u{fe10}'..='\u{fe19}' | '\u{fe30}'..='\u{fe6f}' | '\u{ff01}'..='\u{ff60}'
        | '\u{ffe0}'..='\u{ffe6}' | '\u{16fe0}'..='\u{1b2ff}' | '\u{1d300}'..='\u{1d376}' | '\u{1f004}'
        | '\u{1f0cf}' | '\u{1f18e}' | '\u{1f191}'..='\u{1f19a}' | '\u{1f200}'..='\u{1f64f}'
        | '\u{1f680}'..='\u{1f6ff}' | '\u{1f7e0}'..='\u{1f7ff}' | '\u{1f90c}'..='\u{1f9ff}'
        | '\u{1fa70}'..='\u{1faff}' | '\u{20000}'..='\u{3fffd}')
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An edit after `bytes` have been typed.
    fn typed(bytes: &[u8]) -> Edit {
        let mut edit = Edit::default();
        type_into(&mut edit, bytes, &[]);
        edit
    }

    fn type_into(edit: &mut Edit, mut bytes: &[u8], history: &[String]) {
        while let Some((key, length)) = first_key(bytes) {
            edit.press(key, history);
            bytes = &bytes[length..];
        }
        assert_eq!(bytes, b"", "a key without its end");
    }

    fn halves(edit: &Edit) -> (&str, &str) {
        (&edit.before, &edit.after)
    }

    fn rows(text: &str, columns: usize) -> Vec<String> {
        typed(text.as_bytes()).view("> ", columns, 100, false).rows
    }

    #[test]
    fn keys_are_known_by_all_their_spellings() {
        for (key, spellings) in [
            (Key::Left, &["\x1b[D", "\x1bOD", "\x02", "\x1b[1;5D"][..]),
            (Key::Right, &["\x1b[C", "\x1bOC", "\x06"]),
            (Key::Older, &["\x1b[A", "\x1bOA", "\x10"]),
            (Key::Newer, &["\x1b[B", "\x1bOB", "\x0e"]),
            (Key::Home, &["\x1b[H", "\x1bOH", "\x1b[1~", "\x1b[7~", "\x01"]),
            (Key::End, &["\x1b[F", "\x1bOF", "\x1b[4~", "\x1b[8~", "\x05"]),
            (Key::Delete, &["\x1b[3~"]),
            (Key::Backspace, &["\x7f", "\x08"]),
            (Key::Enter, &["\r", "\n", "\r\n"]),
            (Key::PasteStart, &["\x1b[200~"]),
            (Key::Char('\n'), &["\x1b\r"]),
            (
                Key::Unknown,
                &["\x1b[201~", "\x1b[15;2~", "\x1b[[A", "\x1bx", "\x1b世", "\x1b[?1;2c", "\x1b[24;80R"],
            ),
            (Key::Unknown, &["\x1b]11;rgb:0/0/0\x07", "\x1b]11;rgb:0/0/0\x1b\\", "\x1bP>|x\x1b\\", "\u{9b}"]),
        ] {
            for bytes in spellings {
                assert_eq!(first_key(bytes.as_bytes()), Some((key, bytes.len())), "{bytes:?}");
            }
        }
    }

    #[test]
    fn a_key_is_never_read_before_its_end_has_come() {
        for key in ["\x1b[1;5D", "\x1bOA", "\x1b[200~", "世", "🙂", "\x1b世", "\x1b]0;x\x1b\\"] {
            for cut in 0..key.len() {
                assert_eq!(first_key(&key.as_bytes()[..cut]), None, "{key:?} cut at {cut}");
            }
            assert!(first_key(key.as_bytes()).is_some());
        }
    }

    #[test]
    fn a_broken_key_gives_way_to_the_next() {
        assert_eq!(first_key(b"\x1b\x1b[D"), Some((Key::Unknown, 1)));
        assert_eq!(first_key(b"\x1b[1\x03"), Some((Key::Unknown, 3)));
        assert_eq!(first_key(b"\xe4\xb8y"), Some((Key::NotText, 2)));
        assert_eq!(first_key(b"\xffy"), Some((Key::NotText, 1)));
        let endless = [b"\x1b[".as_slice(), &[b'0'; 300]].concat();
        assert_eq!(first_key(&endless), Some((Key::Unknown, 2 + limits::KEY_BYTES)));
    }

    #[test]
    fn editing_works_anywhere_in_the_line() {
        for (keys, before, after) in [
            ("hello\x1b[D\x1b[DX", "helX", "lo"),
            ("hello\x01X\x05Y", "XhelloY", ""),
            ("hello\x02\x02\x0b", "hel", ""),
            ("hello\x02\x02\x15", "", "lo"),
            ("one two  three  \x17", "one two  ", ""),
            ("one two\x17\x17\x17", "", ""),
            ("abc\x1b[D\x7f\x1b[3~x", "ax", ""),
            ("ab\x01\x04\x06", "b", ""),
            ("\x7f\x1b[D\x1b[3~\x17\x15\x0b\x06", "", ""),
            ("a\tb\x07\x00\x16", "a\tb", ""),
        ] {
            assert_eq!(halves(&typed(keys.as_bytes())), (before, after), "{keys:?}");
        }
    }

    #[test]
    fn lines_of_one_message_are_edited_one_at_a_time() {
        for (keys, before, after) in [
            ("\x01", "one\n", "two"),
            ("\x15", "one\n", ""),
            ("\x15\x15", "one", ""),
            ("\x01\x02\x01", "", "one\ntwo"),
            ("\x01\x02\x01\x0b", "", "\ntwo"),
            ("\x01\x02\x01\x0b\x0b", "", "two"),
            ("\x01\x02\x01\x05", "one", "\ntwo"),
        ] {
            let mut edit = Edit::default();
            edit.paste(b"one\rtwo");
            type_into(&mut edit, keys.as_bytes(), &[]);
            assert_eq!(halves(&edit), (before, after), "{keys:?}");
        }
    }

    #[test]
    fn the_cursor_moves_by_what_is_seen_as_a_character() {
        for unit in [
            "世",
            "🙂",
            "e\u{301}",
            "❤\u{fe0f}",
            "👩\u{200d}👩\u{200d}👧",
            "👍🏽",
            "🇩🇪",
            "1\u{fe0f}\u{20e3}",
            "ก\u{e33}",
            "a\u{202e}",
        ] {
            for text in [format!("x{unit}"), format!("🇫🇷x{unit}"), format!("世{unit}")] {
                let keys = [text.as_bytes(), b"\x02"].concat();
                // Thai AM is a letter of its own.
                let last = if unit.starts_with('ก') { "\u{e33}" } else { unit };
                assert_eq!(typed(&keys).after, last);
                let keys = [text.as_bytes(), b"\x7f"].concat();
                assert_eq!(typed(&keys).before, text[..text.len() - last.len()]);
                let keys = [text.as_bytes(), b"\x02\x06"].concat();
                assert_eq!(typed(&keys).before, text);
            }
        }
        assert_eq!(typed("🇩🇪🇫🇷🇮\x02\x02".as_bytes()).after, "🇫🇷🇮");
        let mut edit = Edit::default();
        edit.paste("a\n\u{301}".as_bytes());
        edit.press(Key::Left, &[]);
        assert_eq!(halves(&edit), ("a\n", "\u{301}"));
    }

    #[test]
    fn history_comes_back_and_the_unfinished_line_is_kept() {
        let history = ["old".to_string(), "new".to_string()];
        for (keys, text) in [
            ("half\x1b[A", "new"),
            ("half\x1b[A\x1b[A", "old"),
            ("half\x1b[A\x1b[A\x1b[A\x1b[B", "new"),
            ("half\x1b[A\x1b[A\x1b[B\x1b[B", "half"),
            ("half\x1b[B", "half"),
            ("half\x1b[Aer\x1b[B!", "half!"),
            ("\x1b[Aer", "newer"),
        ] {
            let mut edit = Edit::default();
            type_into(&mut edit, keys.as_bytes(), &history);
            assert_eq!(edit.finish().as_deref(), Ok(text), "{keys:?}");
        }
        let mut edit = Edit::default();
        type_into(&mut edit, b"\xff\x1b[A", &history);
        assert_eq!(edit.clone().finish().as_deref(), Ok("new"));
        type_into(&mut edit, b"\x1b[B", &history);
        assert_eq!(edit.finish(), Err(Bad::NotUtf8));
    }

    #[test]
    fn a_paste_is_text_whatever_it_holds() {
        let mut edit = typed(b"<>\x02");
        edit.paste(b"a\r\nb\rc\nd\te\x03\x04\x1b[31m\x7f\xc2\x9b");
        assert_eq!(halves(&edit), ("<a\nb\nc\nd\te[31m", ">"));
    }

    #[test]
    fn what_cannot_be_sent_whole_is_not_sent() {
        assert_eq!(typed(b"caf\xe9!").finish(), Err(Bad::NotUtf8));
        assert_eq!(typed(b"caf\xe9\x15ok").finish().as_deref(), Ok("ok"));
        let mut edit = Edit::default();
        edit.paste(b"\xff");
        assert_eq!(edit.finish(), Err(Bad::NotUtf8));
        let mut edit = Edit::default();
        edit.paste(&vec![b'x'; limits::LINE_BYTES]);
        assert!(edit.clone().finish().is_ok());
        edit.insert("y");
        assert_eq!(edit.finish(), Err(Bad::TooLong));
    }

    #[test]
    fn rows_break_by_columns_not_by_bytes() {
        assert_eq!(rows("hello", 20), ["> hello"]);
        assert_eq!(rows("世界世界", 7), ["> 世界", "世界"]);
        assert_eq!(rows("e\u{301}e\u{301}e\u{301}", 5), ["> e\u{301}e\u{301}e\u{301}", ""]);
        assert_eq!(rows("❤\u{fe0f}❤\u{fe0f}", 5), ["> ❤\u{fe0f}", "❤\u{fe0f}"]);
        assert_eq!(rows("か\u{3099}か", 7), ["> か\u{3099}か"]);
        assert_eq!(rows("ab🙂", 5), ["> ab", "🙂"]);
        assert_eq!(rows("\tb", 20), [">     b"]);
        assert_eq!(rows("世", 1), [">", " ", "世", ""]);
    }

    #[test]
    fn a_full_row_gives_the_cursor_the_next_one_until_the_line_is_done() {
        let edit = typed(b"12345678");
        let view = edit.view("> ", 10, 24, false);
        assert_eq!((view.cursor, view.lead.as_str()), (1, ""));
        assert_eq!(view.rows, ["> 12345678", ""]);
        assert_eq!(edit.view("> ", 10, 24, true).rows, ["> 12345678"]);
        let view = typed(b"12345678\x02").view("> ", 10, 24, false);
        assert_eq!((view.cursor, view.lead.as_str()), (0, "> 1234567"));
        assert_eq!(view.rows, ["> 12345678"]);
    }

    #[test]
    fn line_breaks_are_indented_below_the_prompt() {
        let mut edit = Edit::default();
        edit.paste(b"one\ntwo\xe2\x80\xa8three");
        assert_eq!(edit.view("You> ", 20, 24, false).rows, ["You> one", "     two", "     three"]);
        assert_eq!(edit.view("You> ", 8, 24, false).rows[1], "two");
    }

    #[test]
    fn nothing_drawn_acts_on_the_terminal() {
        let mut edit = Edit::default();
        let history = ["a\x1b[2Jb\u{9b}c\u{202e}d\r\u{200b}e\0".to_string()];
        type_into(&mut edit, b"\x1b[A", &history);
        assert_eq!(edit.view("> ", 20, 24, false).rows, ["> a[2Jbcd", "  e"]);
        assert_eq!(edit.finish().unwrap(), history[0]);
    }

    #[test]
    fn a_long_text_costs_a_screenful() {
        let mut edit = Edit::default();
        edit.paste("世界 and more\n".repeat(40_000).as_bytes());
        let view = edit.view("You> ", 80, 24, false);
        assert_eq!((view.rows.len(), view.cursor), (24, 23));
        edit.back_to(300_000);
        let view = edit.view("You> ", 80, 24, false);
        assert_eq!((view.rows.len(), view.cursor), (24, 12));
        assert!(view.rows.iter().all(|row| row == "世界 and more" || row == "     世界 and more"));
        edit.back_to(0);
        let view = edit.view("You> ", 80, 24, false);
        assert_eq!((view.rows[0].as_str(), view.cursor), ("You> 世界 and more", 0));
    }
}
