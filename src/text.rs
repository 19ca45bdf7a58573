//! Text on its way to a person: quoted whole, shown safely, cut cleanly.
//!
//! Owns: the only two doors from outside text to a terminal, [`quote`] (nothing is lost, everything
//! unusual is spelled out) and [`Cleaner`] (what could act on the terminal or deceive is removed).
//! Promises: neither ever yields ESC, another control but newline and tab, or a bidirectional
//! control; both work on characters, so a sequence split over two pieces is no different.
//! Leans on the printable-character table of the standard library (through `str::escape_debug`) and
//! on Unicode's list of default-ignorable characters. Gives up: no terminal is asked what it can
//! show, and lookalike letters are not detected.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

/// Invisible characters that the standard table counts as printable: fillers, blank braille,
/// variation selectors and other default-ignorable marks (Unicode 16, DerivedCoreProperties).
fn is_invisible_mark(c: char) -> bool {
    matches!(c,
        '\u{34f}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{180b}'..='\u{180f}'
        | '\u{2800}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{ffa0}' | '\u{e0000}'..='\u{e0fff}')
}

/// Whether `c` stands for itself inside quotes. `first` characters have nothing to combine with.
fn is_plain(c: char, first: bool) -> bool {
    if is_invisible_mark(c) {
        return false;
    }
    let mut buffer = [0; 8];
    let lead = if first { "" } else { "x" };
    let (head, tail) = buffer.split_at_mut(lead.len());
    head.copy_from_slice(lead.as_bytes());
    let length = lead.len() + c.encode_utf8(tail).len();
    // After a letter, `escape_debug` leaves combining marks alone and escapes what can't be printed.
    match buffer.get(..length).map(std::str::from_utf8) {
        Some(Ok(text)) => c == '\'' || text.escape_debug().nth(lead.len()) == Some(c) && c != '\\',
        _ => false,
    }
}

fn quote_char(c: char, first: bool, out: &mut String) {
    match c {
        '"' => out.push_str("\\\""),
        '\\' => out.push_str("\\\\"),
        '\n' => out.push_str("\\n"),
        '\r' => out.push_str("\\r"),
        '\t' => out.push_str("\\t"),
        c if is_plain(c, first) => out.push(c),
        c => out.extend(c.escape_unicode()),
    }
}

/// The whole text in double quotes, with everything that isn't plainly printable escaped.
pub fn quote(text: &str) -> String {
    quote_os(OsStr::new(text))
}

/// As [`quote`]; bytes that aren't UTF-8 are shown as `\xff`.
pub fn quote_os(text: &OsStr) -> String {
    let mut out = String::from('"');
    for chunk in text.as_bytes().utf8_chunks() {
        for c in chunk.valid().chars() {
            let first = out.len() == 1;
            quote_char(c, first, &mut out);
        }
        for byte in chunk.invalid() {
            out.push_str(&format!("\\x{byte:02x}"));
        }
    }
    out.push('"');
    out
}

/// Whether quoting hides a surprise: something besides quotes, backslashes, tabs and line ends
/// has to be escaped.
pub fn has_hidden(text: &str) -> bool {
    let mut first = true;
    text.chars().any(|c| {
        let hidden = !matches!(c, '"' | '\\' | '\n' | '\t') && !is_plain(c, first);
        first = c == '\n';
        hidden
    })
}

/// Removes from a stream of text what could act on a terminal or deceive its reader.
///
/// Newline and tab stay, as do the joiners and variation selectors that scripts and emoji need. A
/// carriage return shows as a newline (one with the newline that follows it), as do the Unicode
/// line and paragraph separators. Everything else that is a control, a bidirectional control or an
/// invisible format character is deleted.
#[derive(Debug, Default)]
pub struct Cleaner {
    after_cr: bool,
}

impl Cleaner {
    pub fn new() -> Cleaner {
        Cleaner::default()
    }

    /// Appends the clean form of `text`, which continues what came before.
    pub fn push(&mut self, text: &str, out: &mut String) {
        out.reserve(text.len());
        let mut rest = text;
        while !rest.is_empty() {
            // Printable ASCII needs no look at the single character, and is most of all text.
            let plain = rest.bytes().take_while(|b| (0x20..0x7f).contains(b)).count();
            if let Some((head, tail)) = rest.split_at_checked(plain)
                && plain > 0
            {
                out.push_str(head);
                self.after_cr = false;
                rest = tail;
                continue;
            }
            let mut chars = rest.chars();
            if let Some(c) = chars.next() {
                self.push_char(c, out);
            }
            rest = chars.as_str();
        }
    }

    fn push_char(&mut self, c: char, out: &mut String) {
        let after_cr = std::mem::replace(&mut self.after_cr, c == '\r');
        match c {
            '\n' if after_cr => {}
            '\n' | '\t' => out.push(c),
            '\r' | '\u{2028}' | '\u{2029}' => out.push('\n'),
            c if !is_deleted(c) => out.push(c),
            _ => {}
        }
    }
}

/// Controls, bidirectional controls and invisible format characters (Unicode 16: Cc, Cf and
/// default-ignorable) but for the joiners U+200C and U+200D and the variation selectors.
fn is_deleted(c: char) -> bool {
    match c {
        '\u{200c}' | '\u{200d}' | '\u{fe00}'..='\u{fe0f}' | '\u{180b}'..='\u{180d}' | '\u{180f}' => false,
        '\u{0}'..='\u{1f}' | '\u{7f}'..='\u{9f}' => true,
        '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' => true,
        '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' => true,
        '\u{3164}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}' => true,
        '\u{13430}'..='\u{1345f}' | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}' => true,
        '\u{e0000}'..='\u{e0fff}' => true,
        _ => false,
    }
}

/// The clean form of one whole text.
pub fn clean(text: &str) -> String {
    let mut out = String::new();
    Cleaner::new().push(text, &mut out);
    out
}

/// A message on one line: clean, blanks and line ends folded, at most `max_chars` characters.
pub fn one_line(text: &str, max_chars: usize) -> String {
    let folded = clean(text).split_whitespace().collect::<Vec<_>>().join(" ");
    match folded.char_indices().nth(max_chars) {
        Some((end, _)) => format!("{}…", folded.get(..end).unwrap_or_default()),
        None => folded,
    }
}

/// Command output as text: what isn't UTF-8 and NUL become U+FFFD; a character that the end of the
/// capture `cut` in two is dropped.
pub fn decode_output(bytes: &[u8], cut: bool) -> String {
    let mut out = String::with_capacity(bytes.len());
    let mut chunks = bytes.utf8_chunks().peekable();
    while let Some(chunk) = chunks.next() {
        out.extend(chunk.valid().chars().map(|c| if c == '\0' { char::REPLACEMENT_CHARACTER } else { c }));
        let invalid = chunk.invalid();
        let is_torn_end = cut && chunks.peek().is_none() && is_prefix_of_character(invalid);
        if !invalid.is_empty() && !is_torn_end {
            out.push(char::REPLACEMENT_CHARACTER);
        }
    }
    out
}

fn is_prefix_of_character(bytes: &[u8]) -> bool {
    matches!(std::str::from_utf8(bytes), Err(error) if error.error_len().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quote_keeps_readable_text() {
        assert_eq!(quote("echo 'héllo 世界 🙂 สวัสดี ée\u{301}'"), "\"echo 'héllo 世界 🙂 สวัสดี ée\u{301}'\"");
        assert_eq!(quote("a \"b\" \\ c"), r#""a \"b\" \\ c""#);
    }

    #[test]
    fn quote_spells_out_what_is_hidden() {
        for c in "\u{0}\u{7}\u{8}\u{1b}\u{7f}\u{85}\u{9b}\u{a0}\u{ad}\u{34f}\u{61c}\u{115f}\u{1680}\u{180e}\u{2003}\
                  \u{200b}\u{200c}\u{200d}\u{200e}\u{200f}\u{2028}\u{202e}\u{2060}\u{2066}\u{2069}\u{2800}\u{3000}\u{3164}\
                  \u{e000}\u{fe0f}\u{feff}\u{e0041}\u{e0100}"
            .chars()
        {
            let text = format!("a{c}b");
            assert_eq!(quote(&text), format!("\"a{}b\"", c.escape_unicode()));
            assert!(has_hidden(&text), "{c:?}");
        }
        assert_eq!(quote("a\r\n\tb"), r#""a\r\n\tb""#);
        assert_eq!(quote("\u{301}a"), "\"\\u{301}a\"");
        assert_eq!(quote_os(OsStr::from_bytes(b"a\xffb\xe4\xb8")), r#""a\xffb\xe4\xb8""#);
    }

    #[test]
    fn ordinary_commands_hide_nothing() {
        assert!(!has_hidden("printf '\\t%s\\n' \"世界\" | sort\n\tnext 🙂"));
        assert!(has_hidden("printf a\rb"));
    }

    #[test]
    fn attacks_lose_their_controls_and_keep_their_letters() {
        for (attack, shown) in [
            ("\u{1b}]52;c;ZXZpbA==\u{7}", "]52;c;ZXZpbA=="),
            ("\u{1b}]8;;http://evil\u{1b}\\ok\u{1b}]8;;\u{1b}\\", "]8;;http://evil\\ok]8;;\\"),
            ("\u{1b}[2J\u{1b}]0;x\u{7}\u{1b}c", "[2J]0;xc"),
            ("\u{1b}P$q\"p\u{1b}\\", "P$q\"p\\"),
            ("\u{9b}31m\u{9d}0;x\u{9c}", "31m0;x"),
            ("safe\rApprove this operation? [y/N] y", "safe\nApprove this operation? [y/N] y"),
            ("abc\u{8}\u{8}\u{8}xyz\u{7f}", "abcxyz"),
            ("a\u{202e}b\u{2066}c\u{2069}d\u{200f}e\u{61c}f\u{200b}g\u{feff}h\u{ad}i", "abcdefghi"),
            ("\u{e0041}\u{e0042}x", "x"),
        ] {
            assert_eq!(clean(attack), shown);
        }
        assert_eq!(
            clean("👩\u{200d}👩\u{200d}👧 ❤\u{fe0f} می\u{200c}خواهم\tx\n"),
            "👩\u{200d}👩\u{200d}👧 ❤\u{fe0f} می\u{200c}خواهم\tx\n"
        );
    }

    #[test]
    fn any_split_is_cleaned_alike() {
        let text = "a\r\nb\rc\n\u{1b}]52;x\u{7}\u{2028}é\u{202e}世\r";
        let whole = clean(text);
        assert_eq!(whole, "a\nb\nc\n]52;x\né世\n");
        for (cut, _) in text.char_indices() {
            let (mut cleaner, mut out) = (Cleaner::new(), String::new());
            cleaner.push(&text[..cut], &mut out);
            cleaner.push(&text[cut..], &mut out);
            assert_eq!(out, whole, "cut at {cut}");
        }
    }

    #[test]
    fn one_line_folds_and_cuts_by_characters() {
        assert_eq!(one_line(" a\r\n\tb \u{1b}[31mc ", 20), "a b [31mc");
        assert_eq!(one_line("世界世界", 3), "世界世…");
    }

    #[test]
    fn output_is_replaced_but_a_torn_end_is_dropped() {
        assert_eq!(decode_output(b"\xc4\xe3\xba\xc3\n", false), "\u{fffd}\u{fffd}\u{fffd}\n");
        assert_eq!(decode_output(b"a\0b", false), "a\u{fffd}b");
        let face = "🙂".as_bytes();
        for kept in 1..4 {
            let bytes = [b"a", &face[..kept]].concat();
            assert_eq!(decode_output(&bytes, true), "a");
            assert_eq!(decode_output(&bytes, false), "a\u{fffd}");
        }
        assert_eq!(decode_output(b"a\xff", true), "a\u{fffd}");
    }
}
