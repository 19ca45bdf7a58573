//! One conversation: what was said and done is on disk before anyone acts on it.
//!
//! Owns: the open conversation, its turn in progress, and what a start makes of the file it finds.
//! Promises: memory advances only through [`State::save`], after one write and one sync have
//! succeeded; only [`Turn::start`] can make a [`Started`], so nothing runs unrecorded; one turn at a
//! time; a file that is refused isn't changed; opening executes and requests nothing. Leans on
//! `record` for the format, `order` for what may come next, `journal` for durability, and on a [`Spelling`] for how a request puts
//! it. Gives up: a turn that was dropped without its end blocks the session until the next start.
//!
//! A start locks the file, reads all of it, and finds one of these:
//!
//! | case | the file ends with, or contains | on disk | said |
//! | --- | --- | --- | --- |
//! | A | nothing yet | nothing | nothing |
//! | B | a last line without line feed, or not JSON | a synced copy, the tail cut, then as the rest asks | [`StartNotice::TailCut`] |
//! | C | anything wrong before, or a last line that is JSON and wrong | nothing | [`SessionError::Damaged`] |
//! | D | a turn's end | nothing | nothing |
//! | E | a question, without any call after it | `interrupted` | [`StartNotice::InterruptedTurn`] |
//! | F | a response whose calls have no start | `not_executed` for each, `interrupted` | [`StartNotice::InterruptedToolTurn`] |
//! | G | a start without its result | `unknown`, `not_executed` for the calls after it, `interrupted` | the same |
//! | H | every result, but no end | `interrupted` | the same |

use std::borrow::Cow;
use std::fmt;
use std::fs::TryLockError as FileLockError;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};

use serde_json::value::RawValue;

use crate::limits::{JOURNAL_BYTES, JOURNAL_ROOM_BYTES, RECORD_BYTES, RECORD_FRAME_BYTES};
use crate::step::{Call, Input, NotRun, Ran, Repeat, Spelling, Status, ToolResult, TurnStatus};
use crate::sys::file::{self, Links};
use crate::text::quote_os;

mod error;
pub mod home;
mod journal;
mod memory;
mod order;
pub mod record;

pub use error::{SaveError, Saved, SessionError};
pub use home::{Home, HomeError, SessionId, SessionInfo};
use journal::{Journal, Lines};
use memory::Memory;
use order::{Open, Order, Step};
use record::{Body, Flaw, Id, Record};

/// What a start did to the file, in the words for the person.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StartNotice {
    /// The last `bytes` of the file were a torn write; `copy` holds all of it.
    TailCut { copy: PathBuf, bytes: u64 },
    /// A turn with tool calls was closed.
    InterruptedToolTurn,
    /// A turn without any was closed.
    InterruptedTurn,
}

impl fmt::Display for StartNotice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartNotice::TailCut { copy, bytes } => write!(
                f,
                "The last record was torn: {bytes} bytes were cut; the whole file was copied to {} before.",
                quote_os(copy.as_os_str())
            ),
            StartNotice::InterruptedToolTurn => f.write_str(
                "An interrupted tool turn was retained but excluded from context. Commands it started may already have run; none was retried.",
            ),
            StartNotice::InterruptedTurn => f.write_str(
                "An interrupted turn was retained but excluded from context. It was not retried.",
            ),
        }
    }
}

/// The torn end of a journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Torn {
    /// The number of the torn line.
    pub line: u64,
    /// Where it begins, which is what is left of the file once it is cut.
    pub start: u64,
    /// Its length.
    pub bytes: u64,
}

/// What a start would find: the file is sound but for this.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Sound records.
    pub records: u64,
    pub torn: Option<Torn>,
    /// What a start would say of a turn without its end.
    pub open: Option<StartNotice>,
}

/// Says what a start would do, one sentence a line.
impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "The journal's {} records are sound.", self.records)?;
        if let Some(Torn { line, bytes, .. }) = self.torn {
            write!(f, "\nLine {line} is torn ({bytes} bytes): a start would copy the file and cut it.")?;
        }
        if self.open.is_some() {
            f.write_str("\nThe last turn has no end: a start would close it as interrupted.")?;
        }
        Ok(())
    }
}

/// One record as a reader of the conversation sees it.
#[derive(Debug)]
pub struct Entry<'a> {
    pub record: &'a Record<'a>,
    /// The calls of a response, in order.
    pub calls: &'a [Call],
}

/// Reads a conversation without a lock and without changing anything: every record in order goes to
/// `visit`, and the answer is what a start would find. While another process is saving, its last
/// record may look torn.
pub fn read(
    home: &Home,
    id: &SessionId,
    spelling: &dyn Spelling,
    visit: &mut dyn FnMut(Entry<'_>),
) -> Result<Finding, SessionError> {
    let path = home.journal_path(id);
    let file = file::open_regular(&path, Links::Refuse);
    let file = file.map_err(SessionError::io("open", &path))?;
    let found = file.metadata().map_err(SessionError::io("read", &path))?;
    let lines = Lines::new(file, found.len());
    judge(&path, found.len(), lines, spelling, visit).map(|(_, finding)| finding)
}

/// Reads the `bytes` of a journal in one pass, checks each record against all before it, and hands the
/// sound ones to `visit`. Only what can be continued is no error.
fn judge(
    path: &Path,
    bytes: u64,
    mut lines: Lines<impl io::Read>,
    spelling: &dyn Spelling,
    visit: &mut dyn FnMut(Entry<'_>),
) -> Result<(Order, Finding), SessionError> {
    let full = || SessionError::Full { path: path.to_path_buf() };
    if bytes > JOURNAL_BYTES {
        return Err(full());
    }
    let mut order = Order::default();
    let mut torn = None;
    let mut kept_bytes = bytes;
    while lines.advance().map_err(SessionError::io("read", path))? {
        let flaw = match check_line(&lines, &order, spelling) {
            Ok((record, step)) => {
                visit(Entry { record: &record, calls: step.calls() });
                order.commit(record.v, step);
                continue;
            }
            Err(flaw) => flaw,
        };
        let (line, start, bytes) = (lines.number(), lines.start(), lines.bytes());
        let is_last = lines.is_last().map_err(SessionError::io("read", path))?;
        match flaw {
            Flaw::NotJson if is_last => {
                torn = Some(Torn { line, start, bytes });
                kept_bytes = start;
            }
            flaw => {
                return Err(SessionError::Damaged {
                    path: path.to_path_buf(),
                    line,
                    reason: flaw.to_string(),
                });
            }
        }
    }
    let closing_bytes = order.open().map_or(0, |open| open.closing_bytes());
    if kept_bytes + closing_bytes > JOURNAL_BYTES {
        return Err(full());
    }
    let finding = Finding {
        records: order.next_seq() - 1,
        torn,
        open: order.open().map(|open| match open.calls() {
            0 => StartNotice::InterruptedTurn,
            _ => StartNotice::InterruptedToolTurn,
        }),
    };
    Ok((order, finding))
}

fn check_line<'l>(
    lines: &'l Lines<impl io::Read>,
    order: &Order,
    spelling: &dyn Spelling,
) -> Result<(Record<'l>, Step), Flaw> {
    if !lines.is_whole() {
        return Err(Flaw::NotJson);
    }
    let too_long = || Flaw::Wrong(format!("it is longer than {RECORD_BYTES} bytes"));
    let record = Record::parse(lines.line().ok_or_else(too_long)?)?;
    let step = order.check(&record, spelling).map_err(Flaw::Wrong)?;
    Ok((record, step))
}

/// An open conversation. Whoever holds it may try to begin a turn; one at a time succeeds.
pub struct Session {
    id: SessionId,
    state: Mutex<State>,
}

struct State {
    journal: Journal,
    order: Order,
    memory: Memory,
    spelling: Box<dyn Spelling>,
}

impl Session {
    /// Makes a new conversation in a prepared folder. The current one stays the current one.
    pub fn create(home: &Home, spelling: Box<dyn Spelling>) -> Result<Session, SessionError> {
        let id =
            SessionId::new().map_err(SessionError::io("name a conversation in", Path::new("sessions")))?;
        let path = home.journal_path(&id);
        let journal = Journal::create(path.clone()).map_err(SessionError::io("create", &path))?;
        Ok(Session::new(id, State::new(journal, spelling)))
    }

    /// Opens a conversation in a prepared folder, and closes the turn that an earlier process left
    /// open. A file that is refused stays as it was, but for its mode.
    pub fn open(
        home: &Home,
        id: &SessionId,
        spelling: Box<dyn Spelling>,
    ) -> Result<(Session, Vec<StartNotice>), SessionError> {
        let path = home.journal_path(id);
        let mut journal = Journal::open(path.clone()).map_err(|error| match error {
            FileLockError::WouldBlock => SessionError::Locked { id: *id },
            FileLockError::Error(source) => SessionError::io("open", &path)(source),
        })?;
        let mut memory = Memory::default();
        let lines = journal.lines().map_err(SessionError::io("read", &path))?;
        let mut learn = |entry: Entry<'_>| memory.apply(entry.record, &*spelling);
        let (order, found) = judge(&path, journal.bytes(), lines, &*spelling, &mut learn)?;
        let mut notices = Vec::new();
        if let Some(Torn { start, bytes, .. }) = found.torn {
            let copy = journal.cut(start);
            let copy = copy.map_err(SessionError::io("cut the torn end of", &path))?;
            notices.push(StartNotice::TailCut { copy, bytes });
        }
        notices.extend(found.open);
        let mut state = State { journal, order, memory, spelling };
        state.close_open_turn().map_err(SessionError::Close)?;
        Ok((Session::new(*id, state), notices))
    }

    fn new(id: SessionId, state: State) -> Session {
        let state = Mutex::new(state);
        Session { id, state }
    }

    pub fn id(&self) -> SessionId {
        self.id
    }

    /// The last questions, oldest first; none while a turn is in progress.
    pub fn questions(&self) -> Vec<String> {
        match self.try_lock() {
            Some(state) => state.memory.questions.iter().cloned().collect(),
            None => Vec::new(),
        }
    }

    /// Begins a turn, of which nothing is written before its question.
    pub fn begin(&self) -> Result<Turn<'_>, SaveError> {
        let what = Saved::Question;
        let state = self.try_lock().ok_or(SaveError::Busy)?;
        state.check_sound(what)?;
        // The smallest question there is.
        state.check_room(what, RECORD_FRAME_BYTES, JOURNAL_ROOM_BYTES)?;
        let id = Id::new().map_err(SaveError::NoRandom)?;
        Ok(Turn { state, id })
    }

    fn try_lock(&self) -> Option<MutexGuard<'_, State>> {
        match self.state.try_lock() {
            Ok(state) => Some(state),
            Err(TryLockError::WouldBlock) => None,
            // A thread that panicked did so before or after a save, never within its two last lines.
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        }
    }
}

impl State {
    fn new(journal: Journal, spelling: Box<dyn Spelling>) -> State {
        State { journal, order: Order::default(), memory: Memory::default(), spelling }
    }

    /// The only way memory advances: in order, in bounds, written and synced; then it counts.
    fn save(&mut self, turn_id: Id, body: Body<'_>) -> Result<(), SaveError> {
        let what = Saved::of(&body);
        self.check_sound(what)?;
        let record = Record {
            v: record::VERSION,
            seq: self.order.next_seq(),
            time: Some(record::now().into()),
            turn_id,
            body,
        };
        let wrong = |reason| SaveError::Order { what, reason };
        let step = self.order.check(&record, &*self.spelling).map_err(wrong)?;
        let line = record.to_line().map_err(wrong)?;
        let room_bytes = match step {
            Step::Begin(_) | Step::Start => JOURNAL_ROOM_BYTES,
            _ => 0,
        };
        self.check_room(what, line.len(), room_bytes + self.order.closing_bytes(&step))?;
        self.journal.append(&line).map_err(|source| self.failed(what, source))?;
        // A large response is there often enough: shown, received, and soon in the input.
        drop(line);
        self.memory.apply(&record, &*self.spelling);
        self.order.commit(record.v, step);
        Ok(())
    }

    fn check_sound(&self, what: Saved) -> Result<(), SaveError> {
        if self.journal.has_failed() {
            let source = io::Error::other("an earlier save failed, so nothing more is written");
            return Err(self.failed(what, source));
        }
        Ok(())
    }

    /// Whether a line fits its own limit, and into the file with `kept_bytes` left over.
    fn check_room(&self, what: Saved, bytes: usize, kept_bytes: u64) -> Result<(), SaveError> {
        if bytes > RECORD_BYTES {
            return Err(SaveError::TooLarge { what, bytes });
        }
        if self.journal.bytes() + bytes as u64 + kept_bytes > JOURNAL_BYTES {
            return Err(SaveError::Full { what });
        }
        Ok(())
    }

    fn failed(&self, what: Saved, source: io::Error) -> SaveError {
        SaveError::Failed { what, path: self.journal.path().to_path_buf(), source }
    }

    /// Closes the turn that an earlier process left open, if there is one.
    fn close_open_turn(&mut self) -> Result<(), SaveError> {
        let Some(open) = self.order.open() else {
            return Ok(());
        };
        let (turn_id, mut is_started) = (open.id(), open.is_started());
        for call_id in call_ids(open.pending()) {
            let result = if std::mem::take(&mut is_started) {
                let output = "Mino ended before the result was saved; the command may have run.";
                ToolResult::ran(Ran::Unknown, output, None, false)
            } else {
                ToolResult::not_run(NotRun::NotExecuted, "Mino ended before this call.")
            };
            let call_id = Cow::Owned(call_id);
            self.save(turn_id, Body::ToolResult { call_id, result })?;
        }
        let status = TurnStatus::Interrupted;
        self.save(turn_id, Body::TurnEnd { status })
    }
}

fn call_ids<'c>(calls: impl Iterator<Item = &'c Call>) -> Vec<String> {
    calls.map(|call| call.call_id.clone()).collect()
}

/// A turn in progress. While it lives, the session is busy. Each method that saves either does so
/// durably or leaves file (unless the save itself [failed](SaveError::Failed)) and memory as they were;
/// what can't come next is [`SaveError::Order`].
pub struct Turn<'s> {
    state: MutexGuard<'s, State>,
    id: Id,
}

impl Turn<'_> {
    /// Saves the question, which comes first and once.
    pub fn question(&mut self, text: &str) -> Result<(), SaveError> {
        let text = text.into();
        self.state.save(self.id, Body::UserMessage { text })
    }

    /// What the next request carries: completed turns, then this one as far as it is saved.
    pub fn input(&self) -> Input {
        Input { history: Arc::clone(&self.state.memory.history), turn: Arc::clone(&self.state.memory.turn) }
    }

    /// Saves a validated response: the text that was shown, and its items verbatim.
    pub fn response(&mut self, text: &str, items: &[Box<RawValue>]) -> Result<(), SaveError> {
        let body =
            Body::ModelResponse { text: text.into(), output: items.iter().map(|item| &**item).collect() };
        self.state.save(self.id, body)
    }

    /// Whether a response of this turn has used the `call_id`; one that repeats it can't be saved.
    pub fn knows_call(&self, call_id: &str) -> bool {
        self.open().is_some_and(|open| open.knows(call_id))
    }

    /// The calls of this turn, with or without a result.
    pub fn calls_so_far(&self) -> usize {
        self.open().map_or(0, |open| open.calls())
    }

    /// The `call_id`s that have no result yet, in the order in which they must get one.
    pub fn open_calls(&self) -> Vec<String> {
        self.open().map_or_else(Vec::new, |open| call_ids(open.pending()))
    }

    /// An earlier start of the same command, in a turn that the model doesn't know of.
    pub fn earlier_start(&self, call: &Call) -> Option<Repeat> {
        self.state.memory.earlier_start(call).cloned()
    }

    /// Saves that the first open call is about to run, in the directory `cwd`.
    pub fn start(&mut self, call: &Call, cwd: &str) -> Result<Started, SaveError> {
        let body = Body::ToolStart {
            call_id: call.call_id.as_str().into(),
            name: call.name.as_str().into(),
            arguments: call.arguments.as_str().into(),
            cwd: cwd.into(),
        };
        self.state.save(self.id, body)?;
        let call_id = call.call_id.clone();
        Ok(Started { call_id })
    }

    /// Saves the result of the first open call. It says that the call ran where there was a start,
    /// and nowhere else; `unknown` is for a later start to say.
    pub fn result(&mut self, call_id: &str, result: &ToolResult) -> Result<(), SaveError> {
        let body = Body::ToolResult { call_id: call_id.into(), result: result.clone() };
        if result.status() == Status::Ran(Ran::Unknown) {
            return Err(not_live(&body));
        }
        self.state.save(self.id, body)
    }

    /// Saves how the turn ended; `interrupted` is for a later start to say.
    pub fn end(mut self, status: TurnStatus) -> Result<(), SaveError> {
        let body = Body::TurnEnd { status };
        if status == TurnStatus::Interrupted {
            return Err(not_live(&body));
        }
        self.state.save(self.id, body)
    }

    fn open(&self) -> Option<&Open> {
        let open = self.state.order.open();
        open.filter(|open| open.id() == self.id)
    }
}

fn not_live(body: &Body<'_>) -> SaveError {
    SaveError::Order { what: Saved::of(body), reason: "only a later start may say so".to_owned() }
}

/// Proof that a call's start is on disk. [`Turn::start`] is the only place that makes one, and a tool
/// executes nothing without it.
#[derive(Debug)]
pub struct Started {
    call_id: String,
}

impl Started {
    pub fn call_id(&self) -> &str {
        &self.call_id
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Remembers only what it was asked to spell.
    struct Words;

    impl Spelling for Words {
        fn question(&self, text: &str, input: &mut Vec<u8>) {
            input.extend_from_slice(text.as_bytes());
        }
        fn answer(&self, text: &str, input: &mut Vec<u8>) {
            input.extend_from_slice(text.as_bytes());
        }
        fn output(&self, _: &[&RawValue], input: &mut Vec<u8>) {
            input.push(b'o');
        }
        fn result(&self, _: &str, _: &ToolResult, input: &mut Vec<u8>) {
            input.push(b'r');
        }
        fn calls(&self, _: &[&RawValue]) -> Result<Vec<Call>, String> {
            Ok(Vec::new())
        }
    }

    fn session(journal: Journal) -> Session {
        let id = SessionId::new().unwrap();
        Session::new(id, State::new(journal, Box::new(Words)))
    }

    #[test]
    fn a_sync_that_fails_leaves_memory_where_it_was_and_ends_the_saving() {
        let session = session(Journal::unsyncable());
        let mut turn = session.begin().unwrap();
        let error = turn.question("q").unwrap_err();
        assert_eq!(
            error.to_string(),
            "cannot save the question in \"/dev/null\": Invalid argument (os error 22)"
        );
        assert_eq!(error.hint(), Some("The question was not sent."));
        assert!(turn.input().turn.is_empty());
        let error = turn.question("q").unwrap_err();
        assert!(error.to_string().contains("an earlier save failed"));
        drop(turn);
        assert!(matches!(session.begin(), Err(SaveError::Failed { .. })));
        assert_eq!(session.questions(), Vec::<String>::new());
    }

    #[test]
    fn a_sync_that_fails_after_a_start_gives_no_proof_of_it() {
        let scratch = tempfile::tempdir().unwrap();
        let session = session(Journal::create(scratch.path().join("j")).unwrap());
        let mut turn = session.begin().unwrap();
        turn.question("q").unwrap();
        let call = Call {
            call_id: "c".to_owned(),
            name: "bash".to_owned(),
            arguments: "{}".to_owned(),
            altered: false,
        };
        turn.state.order.commit(2, Step::Respond(vec![call.clone()]));
        turn.state.journal = Journal::unsyncable();
        let error = turn.start(&call, "/").unwrap_err();
        assert!(error.hint().unwrap().starts_with("The command was not started"));
        assert_eq!(turn.open_calls(), ["c"]);
        assert!(!turn.open().unwrap().is_started());
    }
}
