//! What a conversation's records come to: the input of the next request, and what is remembered.
//!
//! Owns: the spelled history and turn, the last questions, and the starts of which the model doesn't
//! know. Promises: only completed turns reach the history, which grows by one copy of each turn and is
//! never spelled again. Leans on a [`Spelling`] for how a request puts a fact. Gives up: the session
//! decides when a record counts; whoever still holds the input of an older request makes the next
//! record copy it first.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use super::record::{Body, Record};
use crate::limits::{HISTORY_BYTES, HISTORY_LINES};
use crate::step::{Call, Repeat, Spelling, TurnStatus};

/// What a request and the repeat guard need of all records so far.
#[derive(Default)]
pub struct Memory {
    /// Completed turns as a request spells them, and the turn in progress.
    pub history: Arc<Vec<u8>>,
    pub turn: Arc<Vec<u8>>,
    /// The last ones, for the editor.
    pub questions: VecDeque<String>,
    question_bytes: usize,
    /// The starts of the turn in progress, with their times.
    starts: Vec<(Command, String)>,
    /// Starts in turns that the model doesn't know of.
    repeats: HashMap<Command, Repeat>,
}

/// A tool's name and its arguments, so that the same command looks the same.
type Command = (String, String);

impl Memory {
    /// An earlier start of the same command, in a turn that the model doesn't know of.
    pub fn earlier_start(&self, call: &Call) -> Option<&Repeat> {
        self.repeats.get(&command(&call.name, &call.arguments))
    }

    /// Takes in one record, which is saved and in order.
    pub fn apply(&mut self, record: &Record<'_>, spelling: &dyn Spelling) {
        match &record.body {
            Body::UserMessage { text } => {
                spelling.question(text, Arc::make_mut(&mut self.turn));
                self.remember_question(text);
            }
            Body::AssistantMessage { text } => {
                spelling.answer(text, Arc::make_mut(&mut self.turn));
            }
            Body::ModelResponse { output, .. } => {
                spelling.output(output, Arc::make_mut(&mut self.turn));
            }
            Body::ToolStart { name, arguments, .. } => {
                let time = record.time.as_deref().unwrap_or_default().to_owned();
                self.starts.push((command(name, arguments), time));
            }
            Body::ToolResult { call_id, result } => {
                spelling.result(call_id, result, Arc::make_mut(&mut self.turn));
            }
            Body::TurnEnd { status } => self.end_turn(*status),
        }
    }

    fn remember_question(&mut self, text: &str) {
        self.questions.push_back(text.to_owned());
        self.question_bytes += text.len();
        while self.questions.len() > HISTORY_LINES || self.question_bytes > HISTORY_BYTES {
            let dropped = self.questions.pop_front().unwrap_or_default();
            self.question_bytes -= dropped.len();
        }
    }

    fn end_turn(&mut self, status: TurnStatus) {
        let turn = std::mem::take(&mut self.turn);
        if status == TurnStatus::Completed {
            self.add_to_history(turn);
        }
        for (command, time) in std::mem::take(&mut self.starts) {
            // In a completed turn every start has a result, and none is `unknown`.
            if status == TurnStatus::Completed {
                self.repeats.remove(&command);
            } else {
                let ended = status;
                self.repeats.insert(command, Repeat { time, ended });
            }
        }
    }

    fn add_to_history(&mut self, turn: Arc<Vec<u8>>) {
        if self.history.is_empty() {
            self.history = turn;
            return;
        }
        let history = Arc::make_mut(&mut self.history);
        history.push(b',');
        history.extend_from_slice(&turn);
    }
}

/// Spacing, escapes and the order of fields don't make another command.
fn command(name: &str, arguments: &str) -> Command {
    let parsed = serde_json::from_str::<serde_json::Value>(arguments);
    let arguments = parsed.map_or_else(|_| arguments.to_owned(), |value| value.to_string());
    (name.to_owned(), arguments)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_editors_history_is_bounded_in_lines_and_bytes() {
        let mut memory = Memory::default();
        for n in 0..HISTORY_LINES + 5 {
            memory.remember_question(&n.to_string());
        }
        assert_eq!((memory.questions.len(), &*memory.questions[0]), (HISTORY_LINES, "5"));
        memory.remember_question(&"x".repeat(HISTORY_BYTES - 1));
        assert_eq!(memory.questions.len(), 1);
        memory.remember_question(&"x".repeat(HISTORY_BYTES + 1));
        assert_eq!((memory.questions.len(), memory.question_bytes), (0, 0));
    }
}
