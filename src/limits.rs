//! Every number that bounds Mino, with its unit last in its name and its reason beside it.
//!
//! Owns: the constants. Promises: how they relate is asserted at compile time, so a change that
//! breaks a relation does not build. Leans on nothing. Gives up: none of them is configurable,
//! but for the silence limit of a slow server (`idle_timeout_seconds` in `config.json`).

const KIB: usize = 1024;
const MIB: usize = 1024 * KIB;

// --- one turn -------------------------------------------------------------------------------

/// Model requests (every POST, retries included) in one turn: a model that loops costs money.
pub const TURN_REQUESTS: u32 = 8;
/// Tool calls in one turn, whatever their result: a person approves each of them.
pub const TURN_CALLS: usize = 16;

// --- the model's stream ---------------------------------------------------------------------

/// One SSE event: some servers echo the instructions, tools and whole output in the last one.
pub const EVENT_BYTES: usize = 16 * MIB;
/// One response as kept: its items verbatim, and (counted by itself) its shown text.
pub const RESPONSE_BYTES: usize = 8 * MIB;
/// Items in one response: an array of tiny items would cost many times its size in memory.
pub const RESPONSE_ITEMS: usize = 1024;
/// One whole stream, counting what is skipped: an endless stream must end.
pub const STREAM_BYTES: u64 = 256 * MIB as u64;
/// One read from the connection: one HTTP chunk of a fast server fits.
pub const READ_BYTES: usize = 64 * KIB;
/// One write to the connection: most requests, and one TLS record.
pub const SEND_BYTES: usize = 16 * KIB;
/// The body of an error answer: enough for any server's message, little enough for an HTML page.
pub const ERROR_BODY_BYTES: u64 = 64 * KIB as u64;
/// What is shown of a server's message.
pub const ERROR_TEXT_CHARS: usize = 500;
/// What is shown of a page or JSON text that came in place of a stream, and of any header.
pub const EXCERPT_CHARS: usize = 300;
/// Longest `call_id`; OpenAI's are about 30 bytes, other servers send up to 191.
pub const CALL_ID_BYTES: usize = 512;
/// What is repeated of the name of a tool that does not exist.
pub const TOOL_NAME_CHARS: usize = 64;
/// Name lookup and connecting together (TLS and proxy included).
pub const CONNECT_SECONDS: u64 = 15;
/// Silence in either direction before a request is given up; local servers think for minutes.
pub const IDLE_SECONDS: u64 = 300;
/// Longest `idle_timeout_seconds` that is accepted: a day.
pub const IDLE_MAX_SECONDS: u64 = 86_400;
/// How often a thread that waits for a blocked call looks at the signal flag, and how often a call
/// that is blocked after a signal is woken.
pub const TICK_MILLIS: u64 = 50;
/// Repeats of one request after a transient failure.
pub const RETRIES: u32 = 2;
/// First wait before a retry where the server names none; the second is twice as long.
pub const RETRY_WAIT_MILLIS: u64 = 1_000;
/// Longest `Retry-After` that is honoured; a longer one fails the turn at once.
pub const RETRY_AFTER_MAX_MILLIS: u64 = 60_000;

// --- Bash -----------------------------------------------------------------------------------

/// One command, in bytes of UTF-8: a person is to read all of it.
pub const COMMAND_BYTES: usize = 16_384;
/// Captured output (standard output and error together).
pub const OUTPUT_BYTES: usize = 64 * KIB;
/// From the fork to the end of the command.
pub const COMMAND_SECONDS: u64 = 30;
/// Between SIGTERM and SIGKILL, and for reading what a finished shell left in the pipe.
pub const GRACE_MILLIS: u64 = 250;
/// After SIGKILL: the kernel ends a process in microseconds, unless it sleeps in a driver.
pub const REAP_MILLIS: u64 = 500;
/// Beyond a command's limit: then its guard ends it, where Mino (being stopped itself) has not.
pub const OVERDUE_MILLIS: u64 = 2_000;
/// How often a group that was asked to end is looked at.
pub const GROUP_TICK_MILLIS: u64 = 5;
/// Between two rounds of killing: long enough to die, too short to run far.
pub const SWEEP_TICK_MILLIS: u64 = 1;
/// From a fork to the first word of the child, which takes a fraction of a millisecond.
pub const START_SECONDS: u64 = 5;
/// One read from the output pipe; a pipe holds 64 KiB.
pub const CHUNK_BYTES: usize = 16 * KIB;
/// Processes of one command that are looked at; more are a fork bomb, and enough to know.
pub const TREE_PROCESSES: usize = 4_096;
/// Looks at a command's tree of processes until it stands still for one.
pub const TREE_LOOKS: u32 = 8;
/// Survivors of one command that a notice names.
pub const NAMED_PROCESSES: usize = 8;
/// Descriptors that are closed one by one, on kernels before 5.9: 65,536 take about 20 ms.
pub const DESCRIPTORS: i32 = 65_536;

// --- the journal ----------------------------------------------------------------------------

/// One record with its newline.
pub const RECORD_BYTES: usize = 16 * MIB;
/// One conversation.
pub const JOURNAL_BYTES: u64 = 64 * MIB as u64;
/// Kept free of every question and start, so that the largest result and the closing records fit.
pub const JOURNAL_ROOM_BYTES: u64 = MIB as u64;
/// JSON spells a control character with six bytes (`\u0001`): the worst growth of a text.
pub const JSON_GROWTH: usize = 6;
/// A record without its texts: names, numbers, time and IDs.
pub const RECORD_FRAME_BYTES: usize = 1024;
/// Recovery copies of one conversation before a start asks for help.
pub const RECOVERY_COPIES: u32 = 1000;

// --- people and files -----------------------------------------------------------------------

/// One question typed or piped as a line.
pub const LINE_BYTES: usize = MIB;
/// Text on the standard input of `mino ask`.
pub const STDIN_BYTES: usize = MIB;
/// `SOUL.md`.
pub const SOUL_BYTES: u64 = 64 * KIB as u64;
/// `config.json` and `active-session.json`.
pub const CONFIG_BYTES: u64 = 64 * KIB as u64;
/// A PEM bundle named by `SSL_CERT_FILE`; the usual system bundle is about 220 KiB.
pub const PEM_BYTES: u64 = 8 * MIB as u64;
/// One read of what is typed: the terminal driver holds no more.
pub const TYPED_BYTES: usize = 4 * KIB;
/// A command of more lines or bytes than this has its size shown by the question.
pub const BIG_COMMAND_LINES: usize = 20;
/// See [`BIG_COMMAND_LINES`].
pub const BIG_COMMAND_BYTES: usize = 1_000;
/// Input must be silent for this long before the approval question is asked.
pub const QUIET_MILLIS: u64 = 100;
/// Input that isn't quiet within this many times [`QUIET_MILLIS`] denies; so do as many pastes.
pub const QUIET_ROUNDS: u32 = 50;
/// More input this soon after a line is a paste, not a person; a key's bytes come sooner.
pub const BURST_MILLIS: u64 = 50;
/// A marked paste or a key's bytes that pause for this long have lost their end.
pub const PASTE_MILLIS: u64 = 1_000;
/// A marked paste longer than this has no end; what passes a line's limit is dropped meanwhile.
pub const PASTE_BYTES: usize = 64 * MIB;
/// Longest key as a terminal spells it; answers to a program's queries come as keys too.
pub const KEY_BYTES: usize = 256;
/// What Linux's terminal driver keeps of one line (N_TTY_BUF_SIZE, less the newline).
pub const DRIVER_LINE_BYTES: usize = 4_095;
/// Text before the cursor that is laid out for the screen: more than any screen holds.
pub const VIEW_BYTES: usize = 64 * KIB;
/// One write to a terminal that said it can be written; more might block it.
pub const WRITE_BYTES: usize = 512;
/// One write to a pipe that said it can be written: it takes PIPE_BUF without blocking (pipe(7)).
pub const PIPE_BYTES: usize = 4 * KIB;
/// Times that a read in the background stops Mino before it goes on and fails.
pub const STOP_ROUNDS: u32 = 8;
/// Time for a signal to take effect around a stop: the kernel needs microseconds.
pub const STOP_MILLIS: u64 = 50;
/// From the first sign that a terminal was closed to its SIGHUP, which a shell may have to pass on.
pub const HANGUP_MILLIS: u64 = 250;
/// Questions kept as the editor's history.
pub const HISTORY_LINES: usize = 1_000;
/// All of them together: the history must not hold a second copy of a large conversation.
pub const HISTORY_BYTES: usize = MIB;
/// Links followed to find the file to replace; the kernel itself gives up after 40.
pub const LINK_HOPS: u32 = 40;
/// What is repeated of a line that is no command.
pub const ECHO_CHARS: usize = 40;
/// A typed Ctrl+C as the terminal driver shows it: `^C`.
pub const INTERRUPT_COLUMNS: usize = 2;
/// A wait longer than this is said.
pub const PATIENCE_SECONDS: u64 = 1;
/// A signal's whole work, from its arrival to the exit, is planned to fit into this.
pub const EXIT_MILLIS: u64 = 900;

/// A block of memory from which on it is mapped by itself; glibc would raise its own limit with use.
pub const BLOCK_BYTES: i32 = 128 * KIB as i32;

// A record must be able to hold the largest question, response and result.
const _: () = assert!((LINE_BYTES + STDIN_BYTES) * JSON_GROWTH + RECORD_FRAME_BYTES <= RECORD_BYTES);
const _: () = assert!(RESPONSE_BYTES < RECORD_BYTES);
// The room must hold the largest result, a closing result for every call of a turn, and the end.
const _: () = assert!(
    (OUTPUT_BYTES * JSON_GROWTH
        + RECORD_FRAME_BYTES
        + (TURN_CALLS + 1) * (CALL_ID_BYTES * JSON_GROWTH + RECORD_FRAME_BYTES)) as u64
        <= JOURNAL_ROOM_BYTES
);
const _: () = assert!(JOURNAL_ROOM_BYTES < JOURNAL_BYTES && RECORD_BYTES as u64 <= JOURNAL_BYTES);
// An event must be able to carry a whole response twice (its items, then the terminal event's echo).
const _: () = assert!(EVENT_BYTES >= RESPONSE_BYTES && (EVENT_BYTES as u64) < STREAM_BYTES);
const _: () = assert!(COMMAND_BYTES <= 64 * KIB, "a command must fit the kernel's argument limit");
const _: () = assert!(GRACE_MILLIS + REAP_MILLIS < EXIT_MILLIS && EXIT_MILLIS < 1_000);
// Dropping until the input is quiet must cover what counts as one burst.
const _: () = assert!(BURST_MILLIS <= QUIET_MILLIS && QUIET_MILLIS < PASTE_MILLIS);
