//! The turn: ask the model, serve its calls, ask again, until it answers.
//!
//! Owns: the order of things. Promises: every step is saved before the next begins; a command runs
//! only with a person's approval of exactly that command and with the proof that its start is on
//! disk; whatever ends a turn early, its open calls and the turn itself are closed on disk, unless
//! saving is what failed. Leans on: [`Turn`], which advances memory only after a save; [`Prepared`],
//! of which the person sees a copy and the agent keeps the thing itself; [`Client::respond`], which
//! yields a [`Reply`] only from a stream that reached its end. Gives up: calls of one response run
//! one after the other, never side by side.
//!
//! | what happens | on disk | then |
//! | --- | --- | --- |
//! | an answer without calls | `model_response`, `turn_end` completed | done |
//! | calls within the limits | `model_response`, then for each `tool_start` (if approved) and `tool_result` | ask again |
//! | calls beyond a limit | `model_response`, `not_executed` for each, `turn_end` failed | `Tool limit reached.` |
//! | a call identifier used before | nothing of the response, `turn_end` failed | said |
//! | any other failure | `not_executed` for open calls, `turn_end` failed | said |
//! | a signal, the person leaves, the screen is gone | the same, `turn_end` cancelled | Mino leaves |
//! | a save fails | nothing more | Mino leaves |

use std::fmt;
use std::sync::{Arc, Mutex, TryLockError};

use crate::limits::{TURN_CALLS, TURN_REQUESTS};
pub use crate::model::OutputClosed;
use crate::model::{Client, ModelError, Progress, Reply};
use crate::session::{SaveError, Session, Turn};
use crate::step::{Call, Display, NotRun, Repeat, ToolResult, TurnStatus, Usage, Verdict};
use crate::sys::signal::Stop;
use crate::text::quote;
use crate::tools::{self, Outcome, Prepared, Toolbox};

/// The person at the other end. The gateway implements it; the agent knows no screen.
pub trait Operator {
    /// Shows what happens. An error means that the screen is gone: the turn is cancelled.
    fn show(&mut self, event: Event<'_>) -> Result<(), OutputClosed>;
    /// Asks whether the call may run. Only [`Verdict::Approved`] lets it.
    fn approve(&mut self, display: &Display, repeat: Option<&Repeat>) -> Verdict;
}

/// What happens during a turn, in order.
pub enum Event<'a> {
    /// A request is on its way and nothing has come back yet. Said again and again meanwhile.
    Waiting,
    /// A piece of the response's text as it arrived, not yet cleaned.
    Text(&'a str),
    /// The response is complete, valid and saved.
    Answered(Option<Usage>),
    /// An approved call is about to run.
    Running(&'a Display),
    /// A call has its result, which is saved.
    Result(&'a ToolResult),
    /// One line for the person.
    Notice(&'a str),
}

/// Why a turn did not end with an answer.
#[derive(Debug)]
pub enum TurnError {
    /// Another turn of this conversation is in progress; nothing was written.
    Busy,
    /// A record could not be saved. With [`SaveError::Failed`] the journal is of no more use.
    Save(SaveError),
    Model(ModelError),
    /// The response holds a call identifier that this turn has used before.
    ReusedCall(String),
    ToolLimit,
    /// A signal came.
    Cancelled,
    /// The person left at the approval question.
    Left,
    OutputClosed,
}

impl fmt::Display for TurnError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TurnError::Busy => {
                f.write_str("a turn of this conversation is in progress; ask again when it has ended")
            }
            TurnError::Save(error) => error.fmt(f),
            TurnError::Model(error) => error.fmt(f),
            TurnError::ReusedCall(id) => {
                write!(f, "the model used the call_id {} twice; none of that response's calls ran", quote(id))
            }
            TurnError::ToolLimit => f.write_str("Tool limit reached."),
            TurnError::Cancelled => f.write_str("the turn was cancelled"),
            TurnError::Left => f.write_str("the turn was cancelled at the approval question"),
            TurnError::OutputClosed => f.write_str("the turn was cancelled since its output can't be shown"),
        }
    }
}

impl std::error::Error for TurnError {}

impl From<SaveError> for TurnError {
    fn from(error: SaveError) -> Self {
        match error {
            SaveError::Busy => TurnError::Busy,
            error => TurnError::Save(error),
        }
    }
}

impl From<OutputClosed> for TurnError {
    fn from(OutputClosed: OutputClosed) -> Self {
        TurnError::OutputClosed
    }
}

impl From<ModelError> for TurnError {
    fn from(error: ModelError) -> Self {
        match error {
            ModelError::Cancelled => TurnError::Cancelled,
            ModelError::OutputClosed => TurnError::OutputClosed,
            error => TurnError::Model(error),
        }
    }
}

impl TurnError {
    /// Nothing can be saved any more: the chat has to end.
    pub fn is_fatal(&self) -> bool {
        matches!(self, TurnError::Save(SaveError::Failed { .. }))
    }

    /// What to do about it, where the message doesn't say.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            TurnError::Save(error) => error.hint(),
            TurnError::Model(error) => error.hint(),
            _ => None,
        }
    }

    /// How the turn is closed on disk; `None` where nothing may be written any more.
    fn status(&self) -> Option<TurnStatus> {
        match self {
            TurnError::Busy | TurnError::Save(SaveError::Failed { .. }) => None,
            TurnError::Cancelled | TurnError::Left | TurnError::OutputClosed => Some(TurnStatus::Cancelled),
            _ => Some(TurnStatus::Failed),
        }
    }
}

/// One conversation's agent: a session, its tools and the model, handed in when it is built.
pub struct Agent {
    session: Arc<Session>,
    tools: Toolbox,
    client: Mutex<Client>,
    stop: Stop,
}

impl Agent {
    pub fn new(session: Arc<Session>, tools: Toolbox, client: Client, stop: Stop) -> Agent {
        Agent { session, tools, client: Mutex::new(client), stop }
    }

    /// Goes on with another conversation; the one before is let go of.
    pub fn switch_to(&mut self, session: Arc<Session>) {
        self.session = session;
    }

    /// The conversation's identifier.
    pub fn conversation(&self) -> String {
        self.session.id().to_string()
    }

    /// The conversation's questions, oldest first.
    pub fn questions(&self) -> Vec<String> {
        self.session.questions()
    }

    /// One turn. A second call while one is in progress is refused before anything is written.
    pub fn submit(&self, question: &str, operator: &mut dyn Operator) -> Result<(), TurnError> {
        let mut turn = self.session.begin()?;
        let mut client = match self.client.try_lock() {
            Ok(client) => client,
            Err(TryLockError::WouldBlock | TryLockError::Poisoned(_)) => {
                return Err(TurnError::Busy);
            }
        };
        turn.question(question)?;
        let error = match self.run(&mut turn, &mut client, operator) {
            Ok(usage) => {
                turn.end(TurnStatus::Completed)?;
                // The answer is saved; a screen that fails now has its say in the exit code.
                let _ = operator.show(Event::Answered(usage));
                return Ok(());
            }
            Err(error) => error,
        };
        let Some(status) = error.status() else {
            return Err(error);
        };
        for call_id in turn.open_calls() {
            turn.result(&call_id, &not_executed())?;
        }
        turn.end(status)?;
        Err(error)
    }

    /// Asks and serves until the answer is saved, and tells what it cost.
    fn run(
        &self,
        turn: &mut Turn<'_>,
        client: &mut Client,
        operator: &mut dyn Operator,
    ) -> Result<Option<Usage>, TurnError> {
        let mut budget = TURN_REQUESTS;
        loop {
            let reply = ask(turn, client, &mut budget, operator)?;
            if let Some(call) = reply.calls().iter().find(|call| turn.knows_call(&call.call_id)) {
                return Err(TurnError::ReusedCall(call.call_id.clone()));
            }
            turn.response(reply.text(), reply.items())?;
            if reply.calls().is_empty() {
                return Ok(reply.usage());
            }
            operator.show(Event::Answered(reply.usage()))?;
            if budget == 0 || turn.calls_so_far() > TURN_CALLS {
                return Err(TurnError::ToolLimit);
            }
            for call in reply.calls() {
                self.serve(turn, call, operator)?;
            }
        }
    }

    /// One call, from its arguments to its saved result.
    fn serve(&self, turn: &mut Turn<'_>, call: &Call, operator: &mut dyn Operator) -> Result<(), TurnError> {
        let prepared = match self.tools.prepare(call) {
            Ok(prepared) => prepared,
            Err(refused) => return settle(turn, call, &refused, operator),
        };
        let repeat = turn.earlier_start(call);
        let verdict = operator.approve(prepared.display(), repeat.as_ref());
        // A signal outranks the answer that came with it.
        if self.stop.stopped() {
            return Err(TurnError::Cancelled);
        }
        match verdict {
            Verdict::Approved => self.execute(turn, call, prepared, operator),
            Verdict::Denied => {
                settle(turn, call, &denied("The user denied this command; it was not run."), operator)
            }
            Verdict::NoTerminal => {
                settle(turn, call, &denied("Denied: approval needs an interactive terminal."), operator)
            }
            Verdict::Leave => {
                turn.result(
                    &call.call_id,
                    &denied("The user left at the question; the command was not run."),
                )?;
                Err(TurnError::Left)
            }
            Verdict::Cancelled => Err(TurnError::Cancelled),
            Verdict::ScreenFailed => Err(TurnError::OutputClosed),
        }
    }

    fn execute(
        &self,
        turn: &mut Turn<'_>,
        call: &Call,
        prepared: Prepared,
        operator: &mut dyn Operator,
    ) -> Result<(), TurnError> {
        operator.show(Event::Running(prepared.display()))?;
        let cwd = prepared.display().cwd.as_ref().map(|cwd| cwd.to_string_lossy().into_owned());
        let started = turn.start(call, &cwd.unwrap_or_default())?;
        let Outcome { result, notice } = tools::execute(prepared, started);
        settle(turn, call, &result, operator)?;
        if let Some(notice) = notice {
            operator.show(Event::Notice(&notice))?;
        }
        if self.stop.stopped() { Err(TurnError::Cancelled) } else { Ok(()) }
    }
}

fn ask(
    turn: &Turn<'_>,
    client: &mut Client,
    budget: &mut u32,
    operator: &mut dyn Operator,
) -> Result<Reply, TurnError> {
    let reply = client.respond(&turn.input(), budget, &mut |progress| {
        operator.show(match progress {
            Progress::Waiting => Event::Waiting,
            Progress::Text(text) => Event::Text(text),
            Progress::Notice(text) => Event::Notice(text),
        })
    })?;
    Ok(reply)
}

fn not_executed() -> ToolResult {
    ToolResult::not_run(NotRun::NotExecuted, "The turn ended before this call; it was not executed.")
}

fn denied(why: &str) -> ToolResult {
    ToolResult::not_run(NotRun::Denied, why)
}

fn settle(
    turn: &mut Turn<'_>,
    call: &Call,
    result: &ToolResult,
    operator: &mut dyn Operator,
) -> Result<(), TurnError> {
    turn.result(&call.call_id, result)?;
    Ok(operator.show(Event::Result(result))?)
}
