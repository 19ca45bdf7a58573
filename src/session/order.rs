//! In which order records make sense: the check that loading and saving share.
//!
//! Owns: what a conversation's records so far allow to come next. Promises: nothing is written that a
//! later start would refuse, since both ask here. Leans on a [`Spelling`] to find the calls among a
//! response's items. The rules are told with the format, in the header of `record`. Gives up: it
//! checks how records fit together, not whether what they say is true.

use std::collections::{HashSet, VecDeque};

use super::record::{Body, Id, Record};
use crate::limits::{JSON_GROWTH, RECORD_FRAME_BYTES};
use crate::step::{Call, NotRun, Ran, Spelling, Status, TurnStatus};

/// Which records have been, and so which may come next.
#[derive(Debug, Default)]
pub struct Order {
    records: u64,
    newest_version: u64,
    turns: HashSet<Id>,
    open: Option<Open>,
}

/// A turn without its end.
#[derive(Debug)]
pub struct Open {
    id: Id,
    /// The calls of the latest response that have no result yet, in their order.
    pending: VecDeque<Call>,
    /// The first of them has been started.
    started: bool,
    call_ids: HashSet<String>,
    /// The latest response has no calls: nothing but the end may follow.
    answered: bool,
    /// A result is `unknown`: a later start is closing the turn.
    recovering: bool,
}

/// What a record does to the order. [`Order::check`] finds it, [`Order::commit`] makes it so.
#[derive(Debug)]
pub enum Step {
    Begin(Id),
    /// A response, with its calls.
    Respond(Vec<Call>),
    Start,
    Result(Status),
    End,
}

impl Step {
    /// The calls of a response; nothing else has any.
    pub fn calls(&self) -> &[Call] {
        match self {
            Step::Respond(calls) => calls,
            _ => &[],
        }
    }
}

impl Order {
    /// What the record would do, or why it can't come next.
    pub fn check(&self, record: &Record<'_>, spelling: &dyn Spelling) -> Result<Step, String> {
        if record.seq != self.next_seq() {
            let (seq, next) = (record.seq, self.next_seq());
            return Err(format!("`seq` is {seq} where {next} must come"));
        }
        if record.v < self.newest_version {
            return Err(format!("version {} after a later one", record.v));
        }
        match (&record.body, &self.open) {
            (Body::UserMessage { .. }, Some(_)) => Err("a question inside a turn".to_owned()),
            (Body::UserMessage { .. }, None) if self.turns.contains(&record.turn_id) => {
                Err("`turn_id` was used before".to_owned())
            }
            (Body::UserMessage { .. }, None) => Ok(Step::Begin(record.turn_id)),
            (body, None) => Err(format!("{} outside a turn", body.kind())),
            (_, Some(open)) if open.id != record.turn_id => {
                Err("`turn_id` is not that of the open turn".to_owned())
            }
            (body, Some(open)) => open.check(body, spelling),
        }
    }

    /// The record has been saved, or was read.
    pub fn commit(&mut self, version: u64, step: Step) {
        self.records += 1;
        self.newest_version = version;
        match (step, &mut self.open) {
            (Step::Begin(id), _) => {
                self.turns.insert(id);
                self.open = Some(Open::new(id));
            }
            (Step::End, _) => self.open = None,
            (step, Some(open)) => open.commit(step),
            // `check` gives no other step outside a turn.
            (_, None) => {}
        }
    }

    pub fn next_seq(&self) -> u64 {
        self.records + 1
    }

    pub fn open(&self) -> Option<&Open> {
        self.open.as_ref()
    }

    /// Upper bound of what closing the turn will take, in bytes, once `step` is done.
    pub fn closing_bytes(&self, step: &Step) -> u64 {
        let pending = self.open.iter().flat_map(|open| &open.pending);
        match step {
            Step::End => 0,
            Step::Begin(_) => closing_bytes([].iter()),
            Step::Respond(calls) => closing_bytes(calls.iter()),
            Step::Start => closing_bytes(pending),
            Step::Result(_) => closing_bytes(pending.skip(1)),
        }
    }
}

fn closing_bytes<'c>(calls: impl Iterator<Item = &'c Call>) -> u64 {
    let result_bytes = |call: &Call| call.call_id.len() * JSON_GROWTH + RECORD_FRAME_BYTES;
    (RECORD_FRAME_BYTES + calls.map(result_bytes).sum::<usize>()) as u64
}

impl Open {
    fn new(id: Id) -> Open {
        Open {
            id,
            pending: VecDeque::new(),
            started: false,
            call_ids: HashSet::new(),
            answered: false,
            recovering: false,
        }
    }

    pub fn id(&self) -> Id {
        self.id
    }

    /// The calls without a result, in their order.
    pub fn pending(&self) -> impl Iterator<Item = &Call> {
        self.pending.iter()
    }

    /// Whether the first of [`Open::pending`] has been started.
    pub fn is_started(&self) -> bool {
        self.started
    }

    /// Whether the turn has used this `call_id`.
    pub fn knows(&self, call_id: &str) -> bool {
        self.call_ids.contains(call_id)
    }

    /// The calls of the turn so far, with or without a result.
    pub fn calls(&self) -> usize {
        self.call_ids.len()
    }

    /// Upper bound of what closing the turn will take, in bytes.
    pub fn closing_bytes(&self) -> u64 {
        closing_bytes(self.pending.iter())
    }

    fn check(&self, body: &Body<'_>, spelling: &dyn Spelling) -> Result<Step, String> {
        if self.recovering && !is_closing(body) {
            return Err(format!("{} after a result `unknown`", body.kind()));
        }
        match body {
            Body::UserMessage { .. } => Err("a question inside a turn".to_owned()),
            Body::AssistantMessage { .. } => self.response(Vec::new()),
            Body::ModelResponse { output, .. } => self.response(spelling.calls(output)?),
            Body::ToolStart { call_id, name, arguments, .. } => self.start(call_id, name, arguments),
            Body::ToolResult { call_id, result } => self.result(call_id, result.status()),
            Body::TurnEnd { status } => self.end(*status),
        }
    }

    fn response(&self, calls: Vec<Call>) -> Result<Step, String> {
        if self.answered {
            return Err("a response after the answer".to_owned());
        }
        if !self.pending.is_empty() {
            return Err("a response before every call has its result".to_owned());
        }
        let mut fresh = HashSet::new();
        for Call { call_id, .. } in &calls {
            if self.knows(call_id) || !fresh.insert(call_id) {
                return Err("a `call_id` is used twice in the turn".to_owned());
            }
        }
        Ok(Step::Respond(calls))
    }

    fn start(&self, call_id: &str, name: &str, arguments: &str) -> Result<Step, String> {
        match self.pending.front() {
            _ if self.started => Err("a start before the last one has its result".to_owned()),
            Some(call) if (&*call.call_id, &*call.name, &*call.arguments) == (call_id, name, arguments) => {
                Ok(Step::Start)
            }
            _ => Err("a start that is not that of the next call".to_owned()),
        }
    }

    fn result(&self, call_id: &str, status: Status) -> Result<Step, String> {
        match self.pending.front() {
            Some(call) if call.call_id == call_id => {}
            _ => return Err("a result that is not that of the next call".to_owned()),
        }
        match (self.started, status.ran()) {
            (true, false) => Err(format!("a result `{}` after a start", status.name())),
            (false, true) => Err(format!("a result `{}` without a start", status.name())),
            _ => Ok(Step::Result(status)),
        }
    }

    fn end(&self, status: TurnStatus) -> Result<Step, String> {
        if !self.pending.is_empty() {
            return Err("the end of a turn before every call has its result".to_owned());
        }
        if status == TurnStatus::Completed && !self.answered {
            return Err("a turn that is `completed` without an answer".to_owned());
        }
        Ok(Step::End)
    }

    fn commit(&mut self, step: Step) {
        match step {
            Step::Respond(calls) => {
                self.answered = calls.is_empty();
                self.call_ids.extend(calls.iter().map(|call| call.call_id.clone()));
                self.pending = calls.into();
            }
            Step::Start => self.started = true,
            Step::Result(status) => {
                self.pending.pop_front();
                self.started = false;
                self.recovering |= status == Status::Ran(Ran::Unknown);
            }
            // These are the order's own.
            Step::Begin(_) | Step::End => {}
        }
    }
}

/// Whether a later start may write it to close a turn.
fn is_closing(body: &Body<'_>) -> bool {
    match body {
        Body::ToolResult { result, .. } => result.status() == Status::NotRun(NotRun::NotExecuted),
        Body::TurnEnd { status } => *status == TurnStatus::Interrupted,
        _ => false,
    }
}
