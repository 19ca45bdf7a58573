//! What was typed, and what it means.
//!
//! Owns: the commands and options, and the help text, which is printed from the parser's own table.
//! Promises: nothing is read or opened here; `help` and `version` are known before anything is.
//! Leans on the usual rules of a Unix command line: options come before the first word of a
//! question, `--` ends them, `--name=value` is `--name value`. Gives up: abbreviated options.

use std::ffi::OsString;

use crate::text::quote;

/// One row of the help: what is typed, what it does.
type Row = (&'static str, &'static str);

const COMMANDS: &[Row] = &[
    ("mino", "chat: continue the current conversation"),
    ("mino ask [--] TEXT...", "ask one question, then exit; text on standard input is appended"),
    ("mino ask -", "take the question from standard input"),
    ("mino log [ID]", "print a conversation with times, commands and results"),
    ("mino check [ID]", "validate a conversation's file and say what a start would do"),
    ("mino sessions", "list the conversations; * marks the current one"),
    ("mino help", "this text; also --help, -h"),
    ("mino version", "the version; also --version, -V"),
];

const OPTIONS: &[Row] = &[
    ("--new", "start a new conversation and make it current"),
    ("--session ID", "continue that one and make it current; a unique prefix will do"),
    ("--model NAME", "the model, for this run"),
    ("--base-url URL", "the server, for this run"),
];

/// What can be typed in the chat.
pub const CHAT_COMMANDS: &[Row] = &[
    ("/help", "this text"),
    ("/new", "start a new conversation"),
    ("/exit", "leave; so does Ctrl+D on an empty line"),
    ("Ctrl+C", "leave at once; a turn in progress is cancelled"),
    ("Alt+Enter", "a line break in the question; a paste keeps its own"),
    ("Up, Down", "earlier questions"),
];

/// What a run is asked to do.
#[derive(Debug, PartialEq, Eq)]
pub enum Command {
    Chat(Options),
    Ask(Options, Question),
    Log(Option<String>),
    Check(Option<String>),
    Sessions,
    Help,
    Version,
}

/// Where the question of `mino ask` is.
#[derive(Debug, PartialEq, Eq)]
pub enum Question {
    Words(String),
    StandardInput,
}

/// Which conversation a run continues.
#[derive(Debug, Default, PartialEq, Eq)]
pub enum Choice {
    #[default]
    Current,
    New,
    Named(String),
}

#[derive(Debug, Default, PartialEq, Eq)]
pub struct Options {
    pub choice: Choice,
    pub model: Option<String>,
    pub base_url: Option<String>,
}

/// A call that means nothing: one line for a person.
#[derive(Debug, PartialEq, Eq)]
pub struct UsageError(pub String);

/// Reads the arguments after the program's name.
pub fn parse(words: impl IntoIterator<Item = OsString>) -> Result<Command, UsageError> {
    let mut words = words.into_iter().map(to_text).collect::<Result<Vec<_>, _>>()?.into_iter().peekable();
    let mut options = Options::default();
    take_options(&mut words, &mut options)?;
    let Some(command) = words.next() else {
        return Ok(Command::Chat(options));
    };
    let command = match command.as_str() {
        "ask" => {
            take_options(&mut words, &mut options)?;
            return Ok(Command::Ask(options, question(words)?));
        }
        "help" | "--help" | "-h" => Command::Help,
        "version" | "--version" | "-V" => Command::Version,
        "log" => Command::Log(conversation(&mut words)?),
        "check" => Command::Check(conversation(&mut words)?),
        "sessions" => Command::Sessions,
        other if other.starts_with('-') => {
            return usage(format!("unknown option {}", quote(other)));
        }
        other => return usage(format!("unknown command {}", quote(other))),
    };
    match words.next() {
        Some(word) if !matches!(command, Command::Help | Command::Version) => {
            usage(format!("unexpected argument {}", quote(&word)))
        }
        _ if options != Options::default() && !matches!(command, Command::Help | Command::Version) => {
            usage("options belong to `mino` and `mino ask` only".into())
        }
        _ => Ok(command),
    }
}

/// The ID behind `log` and `check`.
fn conversation(words: &mut impl Iterator<Item = String>) -> Result<Option<String>, UsageError> {
    match words.next() {
        Some(word) if word.starts_with('-') => usage(format!("unknown option {}", quote(&word))),
        word => Ok(word),
    }
}

fn usage<T>(message: String) -> Result<T, UsageError> {
    Err(UsageError(message))
}

fn to_text(word: OsString) -> Result<String, UsageError> {
    word.into_string()
        .map_err(|word| UsageError(format!("not UTF-8: argument {}", crate::text::quote_os(&word))))
}

/// Takes options up to the first word that is none; `--help` and `--version` are left as commands.
fn take_options(
    words: &mut std::iter::Peekable<impl Iterator<Item = String>>,
    options: &mut Options,
) -> Result<(), UsageError> {
    while let Some(word) = words.next_if(|word| is_option(word)) {
        let (name, inline) = match word.split_once('=') {
            Some((name, value)) => (name.to_owned(), Some(value.to_owned())),
            None => (word, None),
        };
        if name == "--new" {
            if inline.is_some() {
                return usage("--new takes no value".into());
            }
            choose(options, Choice::New)?;
            continue;
        }
        let value = match inline.or_else(|| words.next()).filter(|value| !value.is_empty()) {
            Some(value) => value,
            None => return usage(format!("{name} needs a value")),
        };
        match name.as_str() {
            "--session" => choose(options, Choice::Named(value))?,
            "--model" => options.model = Some(value),
            _ => options.base_url = Some(value),
        }
    }
    Ok(())
}

fn is_option(word: &str) -> bool {
    let name = word.split_once('=').map_or(word, |(name, _)| name);
    matches!(name, "--new" | "--session" | "--model" | "--base-url")
}

fn choose(options: &mut Options, choice: Choice) -> Result<(), UsageError> {
    if options.choice != Choice::Current && options.choice != choice {
        return usage("--new and --session exclude each other, and each is given once".into());
    }
    options.choice = choice;
    Ok(())
}

fn question(mut words: std::iter::Peekable<impl Iterator<Item = String>>) -> Result<Question, UsageError> {
    let literal = words.next_if_eq("--").is_some();
    if let Some(word) = words.peek()
        && !literal
        && word.starts_with('-')
        && word.len() > 1
    {
        return usage(format!("unknown option {} (put -- before a question that begins so)", quote(word)));
    }
    let text = words.collect::<Vec<_>>().join(" ");
    match text.as_str() {
        "-" if !literal => Ok(Question::StandardInput),
        _ if text.starts_with("- ") && !literal => {
            usage("`-` takes the whole question from standard input, so nothing may follow it".into())
        }
        blank if blank.trim().is_empty() => {
            usage("`mino ask` needs a question, or `-` to take it from standard input".into())
        }
        _ => Ok(Question::Words(text)),
    }
}

/// The text of `mino help`.
pub fn help() -> String {
    format!(
        "Mino asks a model, and runs the one Bash command it may request only after you approved it.\n\n\
         Commands:\n{}\nOptions of `mino` and `mino ask`, before the question:\n{}\nIn the chat:\n{}\n\
         Files are in ~/.mino (MINO_HOME names another directory): config.json, SOUL.md, sessions/.\n",
        table(COMMANDS),
        table(OPTIONS),
        table(CHAT_COMMANDS),
    )
}

/// Rows as aligned lines.
pub fn table(rows: &[Row]) -> String {
    rows.iter().map(|(typed, does)| format!("  {typed:<22} {does}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Command, UsageError> {
        parse(line.split_whitespace().map(OsString::from))
    }

    fn words(text: &str) -> Question {
        Question::Words(text.into())
    }

    #[test]
    fn every_row_of_the_help_is_understood() {
        for (typed, _) in COMMANDS {
            let line = typed.replace("[--] ", "").replace("TEXT...", "why").replace("[ID]", "");
            assert!(parsed(line.trim_start_matches("mino")).is_ok(), "{typed}");
        }
        for (typed, _) in OPTIONS {
            assert!(matches!(parsed(typed), Ok(Command::Chat(_))), "{typed}");
            assert!(matches!(parsed(&format!("ask {typed} why")), Ok(Command::Ask(..))), "{typed}");
        }
    }

    #[test]
    fn options_come_before_the_question_and_end_there() {
        let Ok(Command::Ask(options, question)) = parsed("--model m ask --session=ab how --new works") else {
            panic!()
        };
        assert_eq!(
            options,
            Options { choice: Choice::Named("ab".into()), model: Some("m".into()), base_url: None }
        );
        assert_eq!(question, words("how --new works"));
        assert_eq!(parsed("ask -- --new"), Ok(Command::Ask(Options::default(), words("--new"))));
        assert_eq!(parsed("ask -- -"), Ok(Command::Ask(Options::default(), words("-"))));
        assert_eq!(parsed("ask -"), Ok(Command::Ask(Options::default(), Question::StandardInput)));
    }

    #[test]
    fn nonsense_is_refused_with_its_name() {
        for (line, said) in [
            ("frob", "unknown command \"frob\""),
            ("--frob", "unknown option \"--frob\""),
            ("--newer", "unknown option \"--newer\""),
            ("ask --frob x", "unknown option \"--frob\""),
            ("ask", "needs a question"),
            ("ask - more", "nothing may follow"),
            ("check --new", "unknown option \"--new\""),
            ("log a b", "unexpected argument \"b\""),
            ("--new --session a", "exclude"),
            ("--session", "--session needs a value"),
            ("--model=", "--model needs a value"),
            ("--new log", "options belong"),
        ] {
            let Err(UsageError(message)) = parsed(line) else { panic!("{line}") };
            assert!(message.contains(said), "{line}: {message}");
        }
    }
}
