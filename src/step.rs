//! The nouns that the agent, the model client, the session and the tools share.
//!
//! Owns: what a call, its display, a verdict and a result are, and how a result is written down.
//! Promises: a result can't contradict whether its command ran, and a key can't be printed.
//! Leans on serde alone. Gives up: no I/O and no decisions live here.

use std::ffi::OsString;
use std::fmt;
use std::sync::Arc;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;

/// One function call as the model made it. `arguments` is its text, not yet checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    pub call_id: String,
    pub name: String,
    pub arguments: String,
    /// The arguments held a lone surrogate and were mended: never to be offered for execution.
    pub altered: bool,
}

/// What a tool is, as the model is told.
#[derive(Clone, Debug)]
pub struct Definition {
    pub name: &'static str,
    pub description: &'static str,
    /// JSON schema of the arguments, as compact JSON.
    pub parameters: &'static str,
}

/// What a person reads before deciding. Values are as they will be used; the screen quotes them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Display {
    pub tool: String,
    pub command: String,
    /// Set when the shell isn't the one a person would expect.
    pub shell: Option<OsString>,
    pub cwd: Option<OsString>,
    /// `NAME=value` pairs, in the order the command gets them.
    pub environment: Vec<OsString>,
    /// One line, for example `30 s timeout; 65536 bytes of combined output`.
    pub limits: String,
    /// What the waiting line counts up to.
    pub seconds: Option<u64>,
}

/// A person's decision about one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Approved,
    /// Anything but `y` or `yes`.
    Denied,
    /// Nobody could be asked: standard input or every screen is something else than a terminal.
    NoTerminal,
    /// End of input or `/exit` at the question: deny, then leave.
    Leave,
    /// A signal arrived at the question.
    Cancelled,
    /// The screen is gone or can't be written to.
    ScreenFailed,
}

/// Why a call was not executed; there was no start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NotRun {
    Denied,
    InvalidArguments,
    UnknownTool,
    NotExecuted,
}

/// How a started call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ran {
    Completed,
    Failed,
    TimedOut,
    OutputLimit,
    Cancelled,
    /// A start without a result, found at a later start. Only recovery writes it.
    Unknown,
}

/// The status of a result: two enums, so that "denied" and "completed" can't be mixed up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Status {
    NotRun(NotRun),
    Ran(Ran),
}

impl Status {
    /// The name in the journal, in requests and on the screen.
    pub fn name(self) -> &'static str {
        match self {
            Status::NotRun(NotRun::Denied) => "denied",
            Status::NotRun(NotRun::InvalidArguments) => "invalid_arguments",
            Status::NotRun(NotRun::UnknownTool) => "unknown_tool",
            Status::NotRun(NotRun::NotExecuted) => "not_executed",
            Status::Ran(Ran::Completed) => "completed",
            Status::Ran(Ran::Failed) => "failed",
            Status::Ran(Ran::TimedOut) => "timed_out",
            Status::Ran(Ran::OutputLimit) => "output_limit",
            Status::Ran(Ran::Cancelled) => "cancelled",
            Status::Ran(Ran::Unknown) => "unknown",
        }
    }

    /// Whether the call had been started.
    pub fn ran(self) -> bool {
        matches!(self, Status::Ran(_))
    }
}

/// What came of one call. Serialised as `status`, `output`, then what exists of `exit_code` and
/// `truncated`: the same in the journal and to the model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ToolResult {
    status: Status,
    output: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    exit_code: Option<i32>,
    #[serde(skip_serializing_if = "is_false")]
    truncated: bool,
}

fn is_false(flag: &bool) -> bool {
    !*flag
}

impl ToolResult {
    /// A call that was never started. There is no exit code and nothing to truncate.
    pub fn not_run(why: NotRun, output: impl Into<String>) -> ToolResult {
        ToolResult { status: Status::NotRun(why), output: output.into(), exit_code: None, truncated: false }
    }

    /// A call that was started.
    pub fn ran(how: Ran, output: impl Into<String>, exit_code: Option<i32>, truncated: bool) -> ToolResult {
        ToolResult { status: Status::Ran(how), output: output.into(), exit_code, truncated }
    }

    pub fn status(&self) -> Status {
        self.status
    }

    pub fn output(&self) -> &str {
        &self.output
    }

    pub fn exit_code(&self) -> Option<i32> {
        self.exit_code
    }

    pub fn truncated(&self) -> bool {
        self.truncated
    }
}

impl<'de> Deserialize<'de> for ToolResult {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Fields {
            status: Status,
            output: String,
            exit_code: Option<i32>,
            #[serde(default)]
            truncated: bool,
        }
        let Fields { status, output, exit_code, truncated } = Fields::deserialize(deserializer)?;
        if !status.ran() && (exit_code.is_some() || truncated) {
            return Err(D::Error::custom("a result that did not run has an exit code or is truncated"));
        }
        Ok(ToolResult { status, output, exit_code, truncated })
    }
}

/// How a turn ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TurnStatus {
    Completed,
    Failed,
    Cancelled,
    Interrupted,
}

impl TurnStatus {
    /// The name in the journal and on the screen.
    pub fn name(self) -> &'static str {
        match self {
            TurnStatus::Completed => "completed",
            TurnStatus::Failed => "failed",
            TurnStatus::Cancelled => "cancelled",
            TurnStatus::Interrupted => "interrupted",
        }
    }
}

/// An earlier start of the same command in a turn that the model does not know of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repeat {
    /// When it was started, as the journal has it.
    pub time: String,
    /// How that turn ended.
    pub ended: TurnStatus,
}

/// Tokens, where the server reports them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub input: Option<u64>,
    pub cached: Option<u64>,
    pub output: Option<u64>,
}

/// The `input` of one request: comma-separated JSON values, without the brackets around them.
///
/// Shared and not copied: a request may be in flight on a thread that was given up.
#[derive(Clone, Debug, Default)]
pub struct Input {
    /// All completed turns.
    pub history: Arc<Vec<u8>>,
    /// The question in progress and everything that came of it so far.
    pub turn: Arc<Vec<u8>>,
}

/// How durable facts are spelled in a request. The model client implements it and the session
/// uses it, so that the session needs no word of the service's and neither imports the other.
///
/// Every method appends whole JSON values to `input`, each but the first after a comma.
pub trait Spelling: Send + Sync {
    fn question(&self, text: &str, input: &mut Vec<u8>);
    /// An answer of a version 1 journal, of which only the text was kept.
    fn answer(&self, text: &str, input: &mut Vec<u8>);
    /// All items of one response, verbatim but for what no server would take back.
    fn output(&self, items: &[&RawValue], input: &mut Vec<u8>);
    fn result(&self, call_id: &str, result: &ToolResult, input: &mut Vec<u8>);
    /// The function calls among the items, in order; or why the items can't be a response.
    fn calls(&self, items: &[&RawValue]) -> Result<Vec<Call>, String>;
}

/// A text that must not be shown. It has no `Display`, and `Debug` says nothing of it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    pub fn new(text: impl Into<String>) -> Secret {
        Secret(text.into())
    }

    /// The text itself. Its callers: the request header, the file that keeps it, and the filter
    /// that removes it from what a server echoes.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(hidden)")
    }
}

/// Which model, where, and how to get there: decided once from options, environment and files.
#[derive(Clone, Debug)]
pub struct Service {
    /// Absolute, without a trailing slash, without user info, query or fragment.
    pub base_url: String,
    pub model: String,
    pub key: Option<Secret>,
    /// Where the key came from, in words for a person (`MINO_API_KEY`, a file's name).
    pub key_source: String,
    pub idle_seconds: u64,
    /// The variable that named the proxy, and its value.
    pub proxy: Option<(&'static str, String)>,
    /// The file that `SSL_CERT_FILE` named, and what it holds.
    pub roots: Option<(String, Vec<u8>)>,
}
