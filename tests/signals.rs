//! Being stopped, in every state and in every way: an orderly end on disk, on the screen and in the exit
//! code; and being suspended, which is no end.

mod support;

use std::any::Any;
use std::io::Read;
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;
use serde_json::json;
use support::endpoint::{Answer, Endpoint, Piece, Reply, call, hold, text};
use support::home::{Home, KEY};
use support::kernel::{Strace, in_own_mounts, mount};
use support::tty::{QUESTION, Size, Tty};
use support::{
    Gathered, PATIENCE, Process, alive, all_at_once, first_words, mark, nothing_alive, read, until,
};

const SIZE: Size = Size { rows: 24, cols: 80 };

/// What a stop may take. All that Mino could be waiting for in these tests takes longer: a name 10 s,
/// a connection 15 s, a command or a retry 30 s.
const PROMPT: Duration = Duration::from_secs(1);
/// How often a stop may take longer, since the machine is busy with other things.
const TRIES: usize = 8;

// --- every way to be stopped ---------------------------------------------------------------------

#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    Signal(Signal),
    /// Ctrl+C.
    Key,
    /// The terminal's window is closed.
    Close,
}

impl Way {
    const ALL: [Way; 5] = [
        Way::Signal(Signal::INT),
        Way::Signal(Signal::TERM),
        Way::Signal(Signal::HUP),
        Way::Key,
        Way::Close,
    ];

    fn go(self, tty: &mut Tty) {
        match self {
            Way::Signal(signal) => tty.signal(signal),
            Way::Key => tty.send("\x03"),
            Way::Close => tty.close_master(),
        }
    }

    fn exit_code(self) -> i32 {
        match self {
            Way::Signal(Signal::HUP) | Way::Close => 129,
            Way::Signal(Signal::INT) | Way::Key => 130,
            Way::Signal(_) => 143,
        }
    }
}

/// Mino in some state.
struct Scene {
    home: Home,
    tty: Tty,
    /// In the command line of everything that it started.
    mark: String,
    /// Whatever has to exist as long.
    _held: Box<dyn Any>,
}

impl Scene {
    /// A chat, or `ask`, that was told `Go`.
    fn going(is_ask: bool, home: Home, held: impl Any) -> Scene {
        let tty = match is_ask {
            true => home.mino(&["ask", "Go"]).on_tty(SIZE),
            false => {
                let tty = home.chat();
                tty.send_line("Go");
                tty
            }
        };
        let (mark, _held) = (mark(), Box::new(held));
        Scene {
            home,
            tty,
            mark,
            _held,
        }
    }

    fn answered(is_ask: bool, answers: impl IntoIterator<Item = Answer>) -> (Scene, Endpoint) {
        let endpoint = Endpoint::start(answers);
        let home = Home::new(&endpoint);
        (Scene::going(is_ask, home, ()), endpoint)
    }
}

/// The settings of a terminal that no program has changed.
fn untouched_settings() -> &'static str {
    static SETTINGS: OnceLock<String> = OnceLock::new();
    SETTINGS.get_or_init(|| {
        let mut tty = Tty::start(SIZE, &Command::new("/bin/true"));
        assert_eq!(tty.wait_exit(), 0);
        tty.termios()
    })
}

/// The terminal is as it was found: its settings, and nothing left on that was turned on.
#[track_caller]
fn assert_terminal_is_as_found(tty: &Tty) {
    assert_eq!(tty.termios(), untouched_settings());
    let raw = String::from_utf8_lossy(&tty.raw()).into_owned();
    let on = raw.rfind("\x1b[?2004h").map_or(-1, |at| at as isize);
    let off = raw.rfind("\x1b[?2004l").map_or(-1, |at| at as isize);
    assert!(on <= off, "pastes are still marked: {}", raw.escape_debug());
    assert!(!raw.contains("\x1b[?25l"), "the cursor is hidden");
}

/// Brings Mino into a state, in a chat and with `ask`, and stops it in every way, all at once. Each
/// stop must be orderly, and prompt as soon as the machine lets it.
#[track_caller]
fn stop_in_every_way(enter: impl Fn(bool) -> Scene + Sync, closed: impl Fn(&Home) + Sync) {
    let stop = |way: Way, is_ask: bool| {
        let Scene {
            home,
            mut tty,
            mark,
            _held,
        } = enter(is_ask);
        let start = Instant::now();
        way.go(&mut tty);
        let code = tty.wait_exit();
        let took = start.elapsed();
        assert_eq!(
            code,
            way.exit_code(),
            "{way:?}, ask: {is_ask}\n{}",
            tty.plain()
        );
        if way != Way::Close {
            assert_terminal_is_as_found(&tty);
        }
        // What was killed may need a moment to die on a busy machine.
        until("the end of all it started", || nothing_alive(&mark));
        closed(&home);
        took < PROMPT
    };
    let chats = Way::ALL.map(|way| (way, false));
    let asks = [Way::Signal(Signal::TERM), Way::Key].map(|way| (way, true));
    let stop = &stop;
    let runs = chats.into_iter().chain(asks);
    all_at_once(runs.map(|(way, is_ask)| {
        move || {
            let is_prompt = (0..TRIES).any(|_| stop(way, is_ask));
            assert!(is_prompt, "never prompt: {way:?}, ask: {is_ask}");
        }
    }));
}

/// The one turn was closed before there was any response.
fn cancelled_without_a_response(home: &Home) {
    assert_eq!(home.kinds(), ["user_message", "turn_end"]);
    assert_eq!(home.turn_ends(), ["cancelled"]);
}

// --- the states ----------------------------------------------------------------------------------

#[test]
fn stopped_at_the_prompt() {
    stop_in_every_way(
        |is_ask| {
            let endpoint = Endpoint::start([]);
            let home = Home::new(&endpoint);
            // `ask` has no prompt; a terminal that can't be drawn on has another one.
            let term = if is_ask { "dumb" } else { "xterm" };
            let tty = home.mino::<&str>(&[]).env("TERM", term).on_tty(SIZE);
            tty.wait_for("You> ");
            tty.send("half a li");
            tty.wait_for("half a li");
            Scene {
                home,
                tty,
                mark: mark(),
                _held: Box::new(endpoint),
            }
        },
        |home| assert_eq!(home.kinds(), Vec::<String>::new()),
    );
}

/// Mino in its setup, at the question for the URL or, hidden, the key.
fn setting_up(is_ask: bool, hidden: bool) -> Scene {
    let home = Home::empty();
    let words: &[&str] = if is_ask { &["ask", "Go"] } else { &[] };
    let tty = home.mino(words).on_tty(SIZE);
    tty.wait_for("API URL [https://api.openai.com/v1]: ");
    if hidden {
        tty.send_line("http://127.0.0.1:9/v1");
        tty.wait_for("Model: ");
        tty.send_line("m");
        tty.wait_for("API Key (input hidden): ");
        tty.send("sk-half-a-key");
    }
    Scene {
        home,
        tty,
        mark: mark(),
        _held: Box::new(()),
    }
}

#[test]
fn stopped_at_a_setup_question() {
    stop_in_every_way(
        |is_ask| setting_up(is_ask, false),
        |home| assert!(!home.mino_home.exists(), "something was saved"),
    );
}

#[test]
fn stopped_at_the_hidden_key() {
    stop_in_every_way(
        |is_ask| setting_up(is_ask, true),
        |home| assert!(!home.mino_home.exists(), "something was saved"),
    );
}

/// A listener that has as many connections as it takes, so that the next one never comes about.
struct Full {
    port: u16,
    _listener: TcpListener,
    _connections: Vec<TcpStream>,
}

impl Full {
    fn new() -> Full {
        use rustix::net::{AddressFamily, SocketType, bind, listen, socket};
        let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        let any = SocketAddr::from(([0, 0, 0, 0], 0));
        bind(&socket, &any).unwrap();
        listen(&socket, 0).unwrap();
        let listener = TcpListener::from(socket);
        let port = listener.local_addr().unwrap().port();
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let mut connections = Vec::new();
        while let Ok(connection) = TcpStream::connect_timeout(&address, Duration::from_millis(300))
        {
            connections.push(connection);
            assert!(connections.len() < 100, "the listener is never full");
        }
        Full {
            port,
            _listener: listener,
            _connections: connections,
        }
    }

    /// Whether somebody waits for a connection (SYN_SENT in the kernel's table) to 127.0.0.`host`.
    fn is_waited_for(&self, host: u8) -> bool {
        let remote = format!(" {host:02X}00007F:{:04X} 02 ", self.port);
        let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
        table.contains(&remote)
    }
}

fn home_with(base_url: &str) -> Home {
    let home = Home::empty();
    home.write_config(&json!({"base_url": base_url, "model": "m", "api_key": KEY}));
    home
}

/// A connect that gets no answer can't be interrupted; others wait with it.
#[test]
fn stopped_while_connecting() {
    let (full, hosts) = (Full::new(), AtomicU8::new(2));
    stop_in_every_way(
        |is_ask| {
            let host = hosts.fetch_add(1, Ordering::Relaxed);
            let url = format!("http://127.0.0.{host}:{}/v1", full.port);
            let scene = Scene::going(is_ask, home_with(&url), ());
            until("a connect", || full.is_waited_for(host));
            scene
        },
        cancelled_without_a_response,
    );
}

/// Nor can a name lookup, which by default takes ten seconds and more to fail.
#[test]
fn stopped_while_looking_up_a_name() {
    let name = "stopped_while_looking_up_a_name";
    if !in_own_mounts(name) {
        return;
    }
    let address = "127.53.53.53";
    let Ok(silent) = UdpSocket::bind((address, 53)) else {
        eprintln!("SKIPPED {name}: nobody may take the port of name servers here");
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let mut mounts = Vec::new();
    for (file, content) in [
        ("resolv.conf", format!("nameserver {address}\n")),
        ("nsswitch.conf", "hosts: files dns\n".to_owned()),
    ] {
        let (ours, theirs) = (folder.path().join(file), Path::new("/etc").join(file));
        std::fs::write(&ours, content).unwrap();
        if theirs.exists() {
            mounts.push(mount(&["--bind", ours.to_str().unwrap()], &theirs));
        }
    }
    let asked = Gathered::default();
    let all_asked = asked.clone();
    thread::spawn(move || {
        let mut question = [0; 512];
        while let Ok(length) = silent.recv(&mut question) {
            all_asked.add(&question[..length]);
        }
    });
    stop_in_every_way(
        |is_ask| {
            let name = mark();
            let url = format!("https://{name}.test/v1");
            let scene = Scene::going(is_ask, home_with(&url), ());
            asked.wait_for(&name, 0, PATIENCE).unwrap();
            scene
        },
        cancelled_without_a_response,
    );
}

#[test]
fn stopped_while_waiting_for_headers() {
    stop_in_every_way(
        |is_ask| {
            let (mut scene, endpoint) = Scene::answered(is_ask, [Answer::silence()]);
            endpoint.wait_for_request(1);
            scene._held = Box::new(endpoint);
            scene
        },
        cancelled_without_a_response,
    );
}

#[test]
fn stopped_while_text_streams() {
    stop_in_every_way(
        |is_ask| {
            let flood = (0..2_000).fold(Reply::new(), |reply, _| reply.delta("and so on "));
            let (mut scene, endpoint) =
                Scene::answered(is_ask, [flood.piece(Piece::AwaitClose).cut()]);
            scene.tty.wait_for("and so on and so on");
            scene._held = Box::new(endpoint);
            scene
        },
        cancelled_without_a_response,
    );
}

#[test]
fn stopped_when_the_stream_went_silent() {
    stop_in_every_way(
        |is_ask| {
            let (pause, release) = hold();
            let answer = Reply::new().delta("Well, ").piece(pause).cut();
            let (mut scene, endpoint) = Scene::answered(is_ask, [answer]);
            scene.tty.wait_for("Well, ");
            scene._held = Box::new((endpoint, release));
            scene
        },
        cancelled_without_a_response,
    );
}

#[test]
fn stopped_while_waiting_to_try_again() {
    stop_in_every_way(
        |is_ask| {
            let busy = Answer::http("503 Service Unavailable", "text/plain", "busy");
            let (mut scene, endpoint) = Scene::answered(is_ask, [busy.header("Retry-After", "30")]);
            scene.tty.wait_for("trying again in 30 s");
            scene._held = Box::new(endpoint);
            scene
        },
        cancelled_without_a_response,
    );
}

#[test]
fn stopped_at_the_approval_question() {
    stop_in_every_way(
        |is_ask| {
            let two = Reply::new()
                .bash("call_1", "touch ran")
                .bash("call_2", "touch ran");
            let (mut scene, endpoint) = Scene::answered(is_ask, [two.completed()]);
            scene.tty.wait_for(QUESTION);
            // An answer that was begun is none.
            scene.tty.send("y");
            scene.tty.wait_for("y");
            scene._held = Box::new(endpoint);
            scene
        },
        |home| {
            assert_eq!(home.result_statuses(), ["not_executed", "not_executed"]);
            assert_eq!(home.turn_ends(), ["cancelled"]);
            assert_eq!(home.work_files(), Vec::<String>::new());
        },
    );
}

/// Other programs stop waiting and let the command run on. Here children in the background, one that
/// left the group and one that wants to stay must be gone with it; what the command said is kept, and
/// the next start goes on as if nothing had been.
#[test]
fn stopped_while_a_command_runs() {
    stop_in_every_way(
        |is_ask| {
            let mark = mark();
            let stay = format!("bash -c \"sleep 300; : {mark}\"");
            let command = format!(
                "echo said; trap 'touch asked' TERM; {stay} & setsid {stay} & touch begun; while :; do {stay}; done"
            );
            let two = Reply::new()
                .bash("call_1", &command)
                .bash("call_2", "touch ran");
            let (mut scene, endpoint) = Scene::answered(is_ask, [two.completed()]);
            scene.tty.answer("y");
            until("the command's begin", || {
                read_names(&scene.home).contains("begun")
            });
            // Itself, its two children, and the one that is the third.
            until("all of its processes", || alive(&mark).len() >= 4);
            scene.mark = mark;
            scene._held = Box::new(endpoint);
            scene
        },
        |home| {
            assert_eq!(home.result_statuses(), ["cancelled", "not_executed"]);
            assert_eq!(home.turn_ends(), ["cancelled"]);
            let result = &home.records_of("tool_result")[0]["result"];
            let output = result["output"].as_str().unwrap();
            assert!(output.starts_with("said\n"), "{result}");
            let names = read_names(home);
            assert!(!names.contains("ran"), "{names}");
            let endpoint = Endpoint::start([text("Hello again.")]);
            home.configure("base_url", endpoint.base_url());
            let output = home.ask("Hello?").expect_code(0);
            assert_eq!((&*output.stdout, &*output.stderr), ("Hello again.\n", ""));
            assert_eq!(endpoint.wait_for_request(1).input().len(), 1);
        },
    );
}

fn read_names(home: &Home) -> String {
    home.work_files().join(" ")
}

/// Somebody pressed Ctrl+S: the terminal takes nothing more.
#[test]
fn stopped_while_the_terminal_takes_no_output() {
    stop_in_every_way(
        |is_ask| {
            let (pause, release) = hold();
            let flood = (0..200).fold(Reply::new().delta("Well, ").piece(pause), |reply, _| {
                reply.delta("and so on ")
            });
            let (mut scene, endpoint) =
                Scene::answered(is_ask, [flood.piece(Piece::AwaitClose).cut()]);
            scene.tty.wait_for("Well, ");
            scene.tty.send("\x13");
            release.release();
            scene._held = Box::new(endpoint);
            scene
        },
        cancelled_without_a_response,
    );
}

/// More text than a pipe holds, and no end.
fn endless() -> Answer {
    let long = "and so on\n".repeat(30_000);
    Reply::new().delta(&long).piece(Piece::AwaitClose).cut()
}

/// Nobody reads what `ask` writes: the pipe is full, and there is no terminal to take Ctrl+C.
#[test]
fn stopped_while_nobody_reads_the_output() {
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        let endpoint = Endpoint::start([endless()]);
        let home = Home::new(&endpoint);
        let (_reader, writer) = std::io::pipe().unwrap();
        let full = writer.try_clone().unwrap();
        let mino = home.mino(&["ask", "Go"]).through(first_words());
        let mut child = mino.command();
        child
            .stdin(Stdio::null())
            .stdout(writer)
            .stderr(Stdio::null());
        let mut process = Process::new(child.spawn().unwrap());
        until("a full pipe", || {
            let mut polled = [PollFd::new(&full, PollFlags::OUT)];
            poll(&mut polled, Some(&Timespec::default())).unwrap() == 0
        });
        process.signal(signal);
        assert_eq!(
            process.wait(PATIENCE),
            Some(Way::Signal(signal).exit_code())
        );
        cancelled_without_a_response(&home);
    }
}

#[test]
fn stopped_while_ask_reads_its_question() {
    let one = |way: Way| {
        let endpoint = Endpoint::start([]);
        let home = Home::new(&endpoint);
        let mut tty = home.mino(&["ask", "-"]).on_tty(SIZE);
        tty.wait_for("Waiting for text on standard input");
        tty.send_line("half a question");
        way.go(&mut tty);
        assert_eq!(tty.wait_exit(), way.exit_code(), "{way:?}");
        if way != Way::Close {
            assert_terminal_is_as_found(&tty);
        }
        assert!(home.session_files().is_empty());
    };
    let piped = |signal: Signal| {
        let home = Home::new(&Endpoint::start([]));
        let mut asking = home.mino(&["ask", "-"]).start();
        asking.write(b"half a question");
        asking.wait_for_stderr("Waiting for text on standard input");
        asking.signal(signal);
        asking.wait().expect_code(Way::Signal(signal).exit_code());
        assert!(home.session_files().is_empty());
    };
    // Each waits a second for the notice.
    let on_tty = Way::ALL.map(|way| Box::new(move || one(way)) as Box<dyn FnOnce() + Send>);
    let signals = [Signal::INT, Signal::TERM, Signal::HUP];
    let on_pipe = signals.map(|signal| Box::new(move || piped(signal)) as Box<dyn FnOnce() + Send>);
    all_at_once(on_tty.into_iter().chain(on_pipe));
}

/// Questions are piped in, and the next one doesn't come.
#[test]
fn stopped_while_a_piped_chat_waits_for_a_line() {
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        let endpoint = Endpoint::start([text("Hello.")]);
        let home = Home::new(&endpoint);
        let mut chat = home.mino::<&str>(&[]).start();
        chat.write(b"Hello?\nhalf a li");
        chat.wait_for_stdout("Hello.\n");
        chat.signal(signal);
        let output = chat.wait().expect_code(Way::Signal(signal).exit_code());
        assert_eq!(output.stderr, "");
        assert_eq!(home.turn_ends(), ["completed"]);
    }
}

/// Ctrl+C throws away what was typed but not read yet. Where that is a line which Mino knows to be
/// there and is just about to read, the read finds nothing and blocks, deaf to everything.
#[test]
fn ctrl_c_right_behind_a_line_is_heard() {
    let endpoint = Endpoint::start([]);
    let home = Home::new(&endpoint);
    for words in [&[][..], &["ask", "-"]] {
        let mino = home.mino(words).env("TERM", "dumb");
        let mut tty = mino.on_tty(SIZE);
        let ready = if words.is_empty() {
            "You> "
        } else {
            "Waiting for text"
        };
        tty.wait_for(ready);
        // Holds up each read of the terminal, so that Ctrl+C comes first.
        let log = home.in_work("log");
        let name = "ctrl_c_right_behind_a_line_is_heard";
        let Some(strace) = Strace::new(name, &log) else {
            return;
        };
        let (pid, terminal) = (tty.pid(), format!("/proc/{}/fd/0", tty.pid()));
        let strace = strace
            .on(std::fs::read_link(terminal).unwrap())
            .calls("read")
            .option("-e")
            .option("inject=read:delay_enter=300000");
        let mut tracer = strace.attach(pid);
        until("the tracer", || {
            let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
            !status.contains("TracerPid:\t0\n")
        });
        tty.send_line("a line");
        tty.wait_for("a line");
        tty.send("\x03");
        assert_eq!(tty.wait_exit(), 130);
        assert!(tracer.wait().unwrap().success());
        assert_terminal_is_as_found(&tty);
    }
    assert_eq!(home.kinds(), Vec::<String>::new());
}

/// The first signal is being handled (the command was asked to end and takes its time) when others
/// come. The first one counts, and the end is as orderly.
#[test]
fn second_signal_changes_nothing() {
    let mark = mark();
    let command =
        format!("trap 'touch asked' TERM; touch begun; while :; do sleep 0.01; done; : {mark}");
    let (mut scene, _endpoint) = Scene::answered(false, [call("call_1", &command)]);
    scene.tty.answer("y");
    until("the command's begin", || {
        read_names(&scene.home).contains("begun")
    });
    scene.tty.signal(Signal::INT);
    until("the handling of the first", || {
        read_names(&scene.home).contains("asked")
    });
    scene.tty.signal(Signal::TERM);
    scene.tty.send("\x03");
    scene.tty.signal(Signal::HUP);
    assert_eq!(scene.tty.wait_exit(), 130);
    assert_terminal_is_as_found(&scene.tty);
    until("the end of all it started", || nothing_alive(&mark));
    assert_eq!(scene.home.result_statuses(), ["cancelled"]);
    assert_eq!(scene.home.turn_ends(), ["cancelled"]);
}

/// The ways out that are no signal.
#[test]
fn other_ways_out_leave_the_terminal_as_it_was_too() {
    let start = |answer: Option<Answer>, words: &[&str]| {
        let endpoint = Endpoint::start(answer);
        let home = Home::new(&endpoint);
        let tty = home.mino(words).on_tty(SIZE);
        (home, tty, endpoint)
    };
    let left = |mut tty: Tty, keys: &str, code: i32| {
        tty.send(keys);
        assert_eq!(tty.wait_exit(), code, "{}", tty.plain());
        assert_terminal_is_as_found(&tty);
    };
    for keys in ["\x04", "/exit\r"] {
        let (_home, tty, _endpoint) = start(None, &[]);
        tty.wait_for("You> ");
        left(tty, keys, 0);
        for (words, code) in [(&[][..], 0), (&["ask", "Go"], 1)] {
            let (home, tty, _endpoint) = start(Some(call("call_1", "touch ran")), words);
            if words.is_empty() {
                tty.wait_for("You> ");
                tty.send_line("Go");
            }
            tty.wait_for(QUESTION);
            left(tty, keys, code);
            assert_eq!(home.turn_ends(), ["cancelled"]);
            assert_eq!(home.work_files(), Vec::<String>::new());
        }
    }
    // Errors: a failed turn, and a start that is refused while another chat has the conversation.
    let failing = Reply::new().failed("server_error", "It broke");
    let (home, tty, _endpoint) = start(Some(failing), &["ask", "Go"]);
    left(tty, "", 1);
    let holder = home.chat();
    left(home.mino::<&str>(&[]).on_tty(SIZE), "", 1);
    left(holder, "\x04", 0);
}

// --- what the parent has decided -----------------------------------------------------------------

/// `nohup mino`: a hangup is no reason to stop.
#[test]
fn ignored_hangup_stays_ignored() {
    let (pause, release) = hold();
    let answer = Reply::new().piece(pause).message("Still here.").completed();
    let endpoint = Endpoint::start([answer]);
    let home = Home::new(&endpoint);
    let mut asking = home.mino(&["ask", "Go"]).after("trap '' HUP").start();
    asking.close_stdin();
    release.wait_reached();
    asking.signal(Signal::HUP);
    // It would be taken by now if it ever were: the next signal is handled.
    release.release();
    assert_eq!(asking.wait().expect_code(0).stdout, "Still here.\n");
    assert_eq!(home.turn_ends(), ["completed"]);

    let (pause, release) = hold();
    endpoint.push(Reply::new().piece(pause).cut());
    let mut asking = home.mino(&["ask", "Go"]).after("trap '' HUP").start();
    asking.close_stdin();
    release.wait_reached();
    asking.signal(Signal::HUP);
    asking.signal(Signal::TERM);
    asking.wait().expect_code(143);
    assert_eq!(home.turn_ends(), ["completed", "cancelled"]);
}

/// The window is closed under a Mino that ignores the hangup. Reads end and writes fail for ever: it
/// must not run on in circles.
#[test]
fn closed_terminal_ends_even_without_a_hangup() {
    let start = |answer: Option<Answer>| {
        let endpoint = Endpoint::start(answer);
        let home = Home::new(&endpoint);
        let tty = home.mino::<&str>(&[]).after("trap '' HUP").on_tty(SIZE);
        tty.wait_for("You> ");
        (home, tty, endpoint)
    };
    let at_the_prompt = || {
        let (home, mut tty, _endpoint) = start(None);
        tty.close_master();
        tty.wait_exit();
        assert_eq!(home.kinds(), Vec::<String>::new());
    };
    let at_the_question = || {
        let (home, mut tty, _endpoint) = start(Some(call("call_1", "touch ran")));
        tty.send_line("Go");
        tty.wait_for(QUESTION);
        tty.close_master();
        tty.wait_exit();
        assert_eq!(home.turn_ends(), ["cancelled"]);
        assert_eq!(home.work_files(), Vec::<String>::new());
    };
    let while_text_streams = || {
        let (pause, release) = hold();
        let streaming = Reply::new().delta("Well, ").piece(pause).delta("then.");
        let (home, mut tty, _endpoint) = start(Some(streaming.piece(Piece::AwaitClose).cut()));
        tty.send_line("Go");
        tty.wait_for("Well, ");
        tty.close_master();
        release.release();
        tty.wait_exit();
        cancelled_without_a_response(&home);
    };
    let while_a_command_runs = || {
        let command = "touch begun; until [ -e go ]; do sleep 0.01; done";
        let (home, mut tty, _endpoint) = start(Some(call("call_1", command)));
        tty.send_line("Go");
        tty.answer("y");
        until("the command's begin", || {
            read_names(&home).contains("begun")
        });
        tty.close_master();
        std::fs::write(home.in_work("go"), "").unwrap();
        tty.wait_exit();
        assert_eq!(home.result_statuses(), ["completed"]);
        assert_eq!(home.turn_ends(), ["cancelled"]);
    };
    let states: [&(dyn Fn() + Sync); 4] = [
        &at_the_prompt,
        &at_the_question,
        &while_text_streams,
        &while_a_command_runs,
    ];
    all_at_once(states);
}

/// With SIGCHLD ignored the kernel reaps children by itself, and their exit codes are lost.
#[test]
fn ignored_sigchld_loses_no_exit_code() {
    let endpoint = Endpoint::start([
        Reply::new()
            .bash("call_1", "grep SigIgn /proc/self/status; exit 7")
            .bash("call_2", "kill -9 $$")
            .completed(),
        text("Seven."),
    ]);
    let home = Home::new(&endpoint);
    let ignoring = home.mino(&["ask", "Go"]).after("trap '' CHLD");
    let mut tty = ignoring.on_tty(SIZE);
    tty.answer("y");
    tty.wait_for("[Tool result: failed; exit code 7]");
    tty.wait_for("SigIgn:\t0000000000000000");
    tty.answer("y");
    tty.wait_for("[Tool result: failed; exit code 137]");
    tty.wait_for("Seven.");
    assert_eq!(tty.wait_exit(), 0);
}

// --- output that goes away -----------------------------------------------------------------------

/// Many programs panic in `| head`. This one leaves quietly, and the turn is cancelled on disk.
#[test]
fn closed_pipe_is_a_quiet_end() {
    let endpoint = Endpoint::start([endless()]);
    let home = Home::new(&endpoint);
    let shell = home.mino(&["ask", "Go"]).through(&[
        "bash",
        "-c",
        r#""$@" < /dev/null | head -n 1; echo "${PIPESTATUS[0]}""#,
        "bash",
    ]);
    let output = shell.run("").expect_code(0);
    assert_eq!((&*output.stdout, &*output.stderr), ("and so on\n141\n", ""));
    cancelled_without_a_response(&home);

    // In a chat the banner finds out.
    for words in [
        &[][..],
        &["log"],
        &["check"],
        &["sessions"],
        &["help"],
        &["--version"],
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut mino = home.mino(words).command();
        let output = mino.stdin(Stdio::null()).stdout(writer).output().unwrap();
        assert_eq!(output.status.code(), Some(141), "{words:?}");
        assert_eq!(output.stderr, b"", "{words:?}");
    }
}

/// The reader leaves while nothing is written; the next piece of text finds out.
#[test]
fn pipe_closed_in_mid_answer_cancels_the_turn() {
    let (pause, release) = hold();
    // More than the pipe holds: a process that is just being started by another test may have a copy
    // of its end for a moment.
    let rest = "and so on ".repeat(30_000);
    let answer = Reply::new().delta("Well, ").piece(pause).delta(&rest);
    let endpoint = Endpoint::start([answer.piece(Piece::AwaitClose).cut()]);
    let home = Home::new(&endpoint);
    let (mut reader, writer) = std::io::pipe().unwrap();
    let mut child = home.mino(&["ask", "Go"]).command();
    child
        .stdin(Stdio::null())
        .stdout(writer)
        .stderr(Stdio::piped());
    let mut child = child.spawn().unwrap();
    let stderr = Gathered::from(child.stderr.take().unwrap());
    let mut process = Process::new(child);
    let mut begin = [0; 6];
    reader.read_exact(&mut begin).unwrap();
    assert_eq!(&begin, b"Well, ");
    drop(reader);
    release.release();
    assert_eq!(process.wait(PATIENCE), Some(141));
    assert!(stderr.wait_for_end(PATIENCE));
    assert_eq!(stderr.text(), "");
    cancelled_without_a_response(&home);
}

#[test]
fn full_disk_for_the_answer_is_an_error() {
    let endpoint = Endpoint::start([text("Hello.")]);
    let home = Home::new(&endpoint);
    for (words, is_turn) in [
        (&["ask", "Go"][..], true),
        (&["log"], false),
        (&["check"], false),
        (&["sessions"], false),
        (&["help"], false),
        (&["--version"], false),
    ] {
        let full = ["bash", "-c", r#"exec "$@" < /dev/null > /dev/full"#, "bash"];
        let output = home.mino(words).through(&full).run("").expect_code(1);
        let error = "mino: cannot write the output: No space left on device (os error 28)\n";
        assert_eq!(output.stderr, error, "{words:?}");
        if is_turn {
            cancelled_without_a_response(&home);
        }
    }
}

/// Descriptors that are closed at the start must not be taken by the journal, or answers would be
/// written into it.
#[test]
fn closed_descriptors_are_not_taken_for_something_else() {
    for closed in ["0<&-", "1>&-", "2>&-", "0<&- 1>&- 2>&-"] {
        let endpoint = Endpoint::start([text("Hello."), text("Hello.")]);
        let home = Home::new(&endpoint);
        let words = ["bash", "-c", &format!(r#"exec "$@" {closed}"#), "bash"];
        for _ in 0..2 {
            let output = home.mino(&["ask", "Go"]).through(&words).run("");
            assert!(!output.stderr.contains("panicked"), "{output}");
            let shown = if closed.contains('1') { "" } else { "Hello.\n" };
            assert_eq!(output.stdout, shown);
        }
        let whole = ["user_message", "model_response", "turn_end"];
        assert_eq!(home.kinds(), [whole, whole].concat());
        assert_eq!(home.turn_ends(), ["completed", "completed"]);
    }
}

// --- being suspended ------------------------------------------------------------------------------

/// A shell with job control on the terminal, as a person has it, and Mino as its job.
struct Shell {
    home: Home,
    tty: Tty,
    _endpoint: Endpoint,
}

/// What the item of an answer is whose text comes in two pieces.
const WELL_THEN: &str = r#"{"type":"message","role":"assistant","status":"completed","content":[{"type":"output_text","text":"Well, then."}]}"#;

const PROMPT_OF_SHELL: &str = "shell> ";

impl Shell {
    fn new(answers: impl IntoIterator<Item = Answer>) -> Shell {
        let endpoint = Endpoint::start(answers);
        Shell::of(Home::new(&endpoint), endpoint)
    }

    fn of(home: Home, _endpoint: Endpoint) -> Shell {
        let mino = home.mino::<&str>(&[]).command();
        let mut shell = Command::new("bash");
        // Without an editor of its own, so that the terminal's settings are the plain ones.
        shell
            .args(["--noprofile", "--norc", "--noediting", "-i"])
            .env_clear()
            .envs(mino.get_envs().filter_map(|(k, v)| Some((k, v?))))
            .env("PS1", PROMPT_OF_SHELL)
            .env("MINO", mino.get_program())
            .current_dir(&home.work);
        let tty = Tty::start(SIZE, &shell);
        tty.wait_for(PROMPT_OF_SHELL);
        Shell {
            home,
            tty,
            _endpoint,
        }
    }

    /// Gives the shell a command.
    fn run(&self, command: &str) {
        self.tty.send_line(command);
        self.tty.wait_for("\r\n");
    }

    fn chat(answers: impl IntoIterator<Item = Answer>) -> Shell {
        let shell = Shell::new(answers);
        shell.run("$MINO");
        shell.tty.wait_for("You> ");
        shell
    }

    /// Ctrl+Z, and the shell is back with its own settings.
    #[track_caller]
    fn suspend(&self) {
        self.tty.send("\x1a");
        self.tty.wait_for("Stopped");
        self.tty.wait_for(PROMPT_OF_SHELL);
        assert_terminal_is_as_found(&self.tty);
    }

    /// Has the shell end its stopped job, and waits for its exit code. `wait` doesn't always notice
    /// that the job goes on.
    #[track_caller]
    fn kill_job(&self) {
        self.run("kill %1; while wait %1; c=$?; [ $c -gt 145 ]; do :; done; echo \"code $c\"");
        self.tty.wait_for("code 143");
        self.tty.wait_for(PROMPT_OF_SHELL);
        assert_terminal_is_as_found(&self.tty);
    }

    /// `/exit` at the prompt, with the exit code as the shell sees it.
    #[track_caller]
    fn leave(mut self) -> Home {
        self.tty.send_line("/exit");
        self.tty.wait_for("Goodbye.");
        self.tty.wait_for(PROMPT_OF_SHELL);
        assert_terminal_is_as_found(&self.tty);
        self.run("exit $?");
        assert_eq!(self.tty.wait_exit(), 0);
        self.home
    }
}

#[test]
fn suspended_at_the_prompt_and_continued() {
    let shell = Shell::chat([text("Hello.")]);
    shell.tty.send("first hal");
    shell.tty.wait_for("first hal");
    shell.suspend();
    shell.run("echo in between");
    shell.run("fg");
    shell.tty.wait_for("You> first hal");
    shell.tty.send_line("f and second");
    shell.tty.wait_for("Hello.");
    shell.tty.wait_for("You> ");
    let home = shell.leave();
    let question = &home.records_of("user_message")[0]["text"];
    assert_eq!(question, "first half and second");
}

#[test]
fn suspended_while_text_streams_and_continued() {
    let (pause, release) = hold();
    let answer = Reply::new()
        .delta("Well, ")
        .piece(pause)
        .delta("then.")
        .item(WELL_THEN);
    let shell = Shell::chat([answer.completed()]);
    shell.tty.send_line("Go");
    shell.tty.wait_for("Well, ");
    shell.suspend();
    release.release();
    shell.run("echo in between");
    shell.tty.wait_for("in between");
    shell.run("fg");
    shell.tty.wait_for("then.");
    shell.tty.wait_for("You> ");
    assert_eq!(shell.leave().turn_ends(), ["completed"]);
}

/// The command isn't suspended with Mino; its result waits.
#[test]
fn suspended_while_a_command_runs_and_continued() {
    let command = "touch begun; until [ -e go ]; do sleep 0.01; done; echo did it; touch done";
    let shell = Shell::chat([call("call_1", command), text("Good.")]);
    shell.tty.send_line("Go");
    shell.tty.answer("y");
    until("the command's begin", || {
        read_names(&shell.home).contains("begun")
    });
    shell.suspend();
    std::fs::write(shell.home.in_work("go"), "").unwrap();
    until("the command's end", || {
        read_names(&shell.home).contains("done")
    });
    shell.run("fg");
    shell.tty.wait_for("[Tool result: completed; exit code 0]");
    shell.tty.wait_for("did it");
    shell.tty.wait_for("Good.");
    shell.tty.wait_for("You> ");
    assert_eq!(shell.leave().turn_ends(), ["completed"]);
}

/// What is typed into the shell in between is no answer. The question is asked anew, and since the
/// command may have left the screen, with all that belongs to it.
#[test]
fn suspended_at_the_approval_question_and_continued() {
    let shell = Shell::chat([call("call_1", "echo 1 >> ran"), text("Good.")]);
    shell.tty.send_line("Go");
    shell.tty.wait_for(QUESTION);
    shell.suspend();
    shell.run("y");
    shell.tty.wait_for(PROMPT_OF_SHELL);
    assert_eq!(shell.home.work_files(), Vec::<String>::new());
    shell.run("fg");
    shell.tty.wait_for("Command: \"echo 1 >> ran\"");
    shell.tty.wait_for("this is not a sandbox.");
    shell.tty.answer("y");
    shell.tty.wait_for("[Tool result: completed; exit code 0]");
    shell.tty.wait_for("Good.");
    shell.tty.wait_for("You> ");
    let home = shell.leave();
    assert_eq!(read(home.in_work("ran")), b"1\n");
    assert_eq!(home.turn_ends(), ["completed"]);
}

/// A shell resets the terminal when a job stops, and after `fg` a key would be typed with echo. So
/// Ctrl+Z doesn't stop there; as a part of the key it is refused.
#[test]
fn hidden_key_cannot_be_suspended() {
    let endpoint = Endpoint::start([]);
    let url = endpoint.base_url();
    let shell = Shell::of(Home::empty(), endpoint);
    shell.run("$MINO");
    shell.tty.wait_for("API URL");
    shell.tty.send_line(&url);
    shell.tty.wait_for("Model: ");
    shell.tty.send_line("m");
    shell.tty.wait_for("API Key (input hidden): ");
    shell.tty.send("sk-se\x1acret\r");
    shell.tty.wait_for("API Key (input hidden): ");
    shell.tty.send_line("sk-secret-2");
    shell.tty.wait_for("You> ");
    let home = shell.leave();
    let config: serde_json::Value = serde_json::from_slice(&read(home.config_path())).unwrap();
    assert_eq!(config["api_key"], "sk-secret-2");
}

/// A job that is told to end while it is stopped is in the background when it does: there it must
/// neither touch the terminal, which is the shell's, nor be stopped by the attempt.
#[test]
fn stopped_job_can_be_ended_from_the_background() {
    let (pause, _release) = hold();
    let shell = Shell::chat([Reply::new().delta("Well, ").piece(pause).cut()]);
    shell.tty.send("half a li");
    shell.tty.wait_for("half a li");
    shell.suspend();
    shell.kill_job();

    shell.run("$MINO");
    shell.tty.wait_for("You> ");
    shell.tty.send_line("Go");
    shell.tty.wait_for("Well, ");
    shell.suspend();
    shell.kill_job();
    cancelled_without_a_response(&shell.home);

    // This one stops by itself.
    shell.run("$MINO &");
    shell.tty.wait_for("/help lists commands.");
    shell.run("until jobs | grep -q Stopped; do sleep 0.01; done");
    shell.kill_job();
}

/// In the background an answer still arrives. The prompt wants input, so the job stops there, as any
/// program's would, and goes on in the foreground.
#[test]
fn answer_arrives_in_the_background_and_the_prompt_waits() {
    let (pause, release) = hold();
    let answer = Reply::new()
        .delta("Well, ")
        .piece(pause)
        .delta("then.")
        .item(WELL_THEN);
    let shell = Shell::chat([answer.completed(), text("Hello.")]);
    shell.tty.send_line("Go");
    shell.tty.wait_for("Well, ");
    shell.suspend();
    shell.run("bg");
    shell.tty.wait_for(PROMPT_OF_SHELL);
    release.release();
    shell.tty.wait_for("then.");
    shell.run("until jobs | grep -q Stopped; do sleep 0.01; done; echo it waits");
    shell.tty.wait_for("it waits\r\n");
    assert_terminal_is_as_found(&shell.tty);
    shell.run("fg");
    shell.tty.wait_for("You> ");
    shell.tty.send_line("Hello?");
    shell.tty.wait_for("Hello.");
    shell.tty.wait_for("You> ");
    assert_eq!(shell.leave().turn_ends(), ["completed", "completed"]);
}
