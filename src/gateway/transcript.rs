//! A conversation as `mino log` prints it: who said what when, what ran, how it ended.
//!
//! Owns: the wording of the transcript. Promises: it is made record by record, so a conversation of
//! any size is never held whole; everything passes the cleaner or is quoted. Leans on the journal's
//! records. Gives up: the text is for people; programs read the journal itself.

use crate::session::Entry;
use crate::session::record::{Body, millis};
use crate::step::Call;
use crate::text::{clean, quote};

use super::screen::result_label;

/// What the records so far say about time.
#[derive(Default)]
pub struct Transcript {
    turn_began: Option<u64>,
    call_began: Option<u64>,
}

impl Transcript {
    /// The lines of one more record, each ended.
    pub fn add(&mut self, entry: &Entry<'_>) -> String {
        let record = entry.record;
        let time = record.time.as_deref().unwrap_or("(no time)");
        let now = record.time.as_deref().and_then(millis);
        let text = match &record.body {
            Body::UserMessage { text } => {
                self.turn_began = now;
                format!("You> {}", clean(text))
            }
            Body::AssistantMessage { text } => format!("Assistant> {}", clean(text)),
            Body::ModelResponse { text, .. } => {
                let calls: String = entry.calls.iter().map(asked).collect();
                format!("Assistant> {}{calls}", clean(text))
            }
            Body::ToolStart { cwd, .. } => {
                self.call_began = now;
                format!("Approved and started in {}", quote(cwd))
            }
            Body::ToolResult { result, .. } => {
                let took = took(self.call_began.take(), now);
                format!("{}{took}\n{}", result_label(result), clean(result.output()))
            }
            Body::TurnEnd { status } => {
                format!("Turn {}{}", status.name(), took(self.turn_began.take(), now))
            }
        };
        // Indented, so that no text can pass for the transcript's own lines.
        let text = text.strip_suffix('\n').unwrap_or(&text).replace('\n', "\n    ");
        let is_end = matches!(record.body, Body::TurnEnd { .. });
        format!("{time} {text}\n{}", if is_end { "\n" } else { "" })
    }
}

/// A call as the model made it; the command alone where the arguments are those of `bash`.
fn asked(call: &Call) -> String {
    let arguments = serde_json::from_str::<serde_json::Value>(&call.arguments).ok();
    let command = arguments.as_ref().and_then(|arguments| arguments.get("command")?.as_str());
    format!("\n[Tool: {}] {}", clean(&call.name), quote(command.unwrap_or(&call.arguments)))
}

fn took(from: Option<u64>, to: Option<u64>) -> String {
    match (from, to) {
        (Some(from), Some(to)) => {
            let tenths = to.saturating_sub(from) / 100;
            format!(" after {}.{} s", tenths / 10, tenths % 10)
        }
        _ => String::new(),
    }
}
