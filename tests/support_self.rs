//! The tests' own tools, tried before anything is tested with them.

mod support;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Command, Stdio};

use rustix::process::Signal;
use serde_json::{Value, json};
use support::endpoint::{Answer, Endpoint, Framing, Piece, Reply, call, calls, hold, text};
use support::home::{Home, mode};
use support::tty::{Instead, Size, Tty};
use support::{alive, mark, nothing_alive, read, until};

const SIZE: Size = Size { rows: 24, cols: 80 };

/// Sends one request and answers what came until the end of the connection.
fn talk(endpoint: &Endpoint, body: &str) -> (String, std::io::Result<usize>) {
    let mut stream = TcpStream::connect(endpoint.address()).unwrap();
    send(&mut stream, body);
    let mut bytes = Vec::new();
    let result = stream.read_to_end(&mut bytes);
    (String::from_utf8(bytes).unwrap(), result)
}

fn send(stream: &mut TcpStream, body: &str) {
    let length = body.len();
    let head = format!("POST /v1/x HTTP/1.1\r\nX-Some: thing\r\nContent-Length: {length}\r\n\r\n");
    stream.write_all((head + body).as_bytes()).unwrap();
}

fn bash(script: &str) -> Command {
    let mut command = Command::new("/bin/bash");
    command
        .args(["--noprofile", "--norc", "-c", script])
        .env("PATH", std::env::var_os("PATH").unwrap());
    command
}

#[test]
fn endpoint_keeps_what_it_was_sent() {
    let endpoint = Endpoint::start([text("a").framed(Framing::Close)]);
    let body = r#"{"model":"m","input":[{"a": 1.50},{"type":"function_call_output","call_id":"c","output":"{\"status\":\"denied\"}"}],"x":[]}"#;
    talk(&endpoint, body).1.unwrap();
    let request = endpoint.wait_for_request(1);
    assert_eq!((&*request.method, &*request.path), ("POST", "/v1/x"));
    assert_eq!(request.header("x-some"), Some("thing"));
    assert_eq!(request.body, body.as_bytes());
    assert_eq!(request.input()[0], r#"{"a": 1.50}"#);
    let around = request.around_input();
    assert_eq!(around.0, r#"{"model":"m","input":"#);
    assert_eq!(around.1, r#","x":[]}"#);
    assert_eq!(
        request.results(),
        [("c".to_owned(), json!({"status": "denied"}))]
    );
    endpoint.assert_all_used();
}

#[test]
fn endpoint_frames_as_told() {
    let pieces = || vec![Piece::text("ab"), Piece::text("c")];
    let endpoint = Endpoint::start([
        Answer::stream(pieces()),
        Answer::stream(pieces()).framed(Framing::ContentLength),
        Answer::stream(pieces())
            .byte_by_byte()
            .framed(Framing::Close),
        Answer::raw(pieces()),
    ]);
    // The first two keep the connection: the third ends it.
    let mut stream = TcpStream::connect(endpoint.address()).unwrap();
    (0..3).for_each(|_| send(&mut stream, "{}"));
    let mut bytes = String::new();
    stream.read_to_string(&mut bytes).unwrap();
    let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n";
    let chunked = format!("{head}Transfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n");
    let length = format!("{head}Content-Length: 3\r\n\r\nabc");
    let close = format!("{head}Connection: close\r\n\r\nabc");
    assert_eq!(bytes, chunked + &length + &close);
    assert_eq!(talk(&endpoint, "{}").0, "abc");
    endpoint.assert_all_used();
}

#[test]
fn endpoint_holds_resets_cuts_and_sees_the_client_go() {
    let (pause, release) = hold();
    let endpoint = Endpoint::start([
        Answer::raw(vec![Piece::text("before"), pause, Piece::text("after")]),
        Answer::stream(vec![Piece::text("x"), Piece::Cut]),
        Answer::raw(vec![Piece::Reset]),
        Answer::silence(),
    ]);
    let mut stream = TcpStream::connect(endpoint.address()).unwrap();
    send(&mut stream, "{}");
    release.wait_reached();
    let mut before = [0; 6];
    stream.read_exact(&mut before).unwrap();
    assert_eq!(&before, b"before");
    stream.set_nonblocking(true).unwrap();
    assert_eq!(
        stream.read(&mut before).unwrap_err().kind(),
        std::io::ErrorKind::WouldBlock
    );
    stream.set_nonblocking(false).unwrap();
    release.release();
    let mut after = String::new();
    stream.read_to_string(&mut after).unwrap();
    assert_eq!(after, "after");

    let (cut, result) = talk(&endpoint, "{}");
    assert!(cut.ends_with("1\r\nx\r\n") && result.is_ok());
    let reset = talk(&endpoint, "{}").1.unwrap_err();
    assert_eq!(reset.kind(), std::io::ErrorKind::ConnectionReset);

    let mut stream = TcpStream::connect(endpoint.address()).unwrap();
    send(&mut stream, "{}");
    endpoint.wait_for_request(4);
    drop(stream);
    endpoint.wait_for_closed(1);
    endpoint.assert_all_used();
}

#[test]
fn unscripted_request_fails_the_test() {
    let endpoint = Endpoint::start([]);
    assert!(talk_once(&endpoint).starts_with("HTTP/1.1 400"));
    let failed = catch_unwind(AssertUnwindSafe(move || drop(endpoint)));
    assert!(failed.is_err());
    let unused = Endpoint::start([text("nobody asks")]);
    assert!(catch_unwind(AssertUnwindSafe(|| unused.assert_all_used())).is_err());
}

fn talk_once(endpoint: &Endpoint) -> String {
    let mut stream = TcpStream::connect(endpoint.address()).unwrap();
    send(&mut stream, "{}");
    let mut bytes = [0; 64];
    let count = stream.read(&mut bytes).unwrap();
    String::from_utf8_lossy(&bytes[..count]).into_owned()
}

#[test]
fn reply_is_a_stream_whose_parts_agree() {
    let answer = Reply::new()
        .reasoning("opaque/+=")
        .message_in_phase("Let me \"look\" – now", Some("commentary"))
        .bash("call_1", "printf 'a: b'")
        .completed();
    let body = String::from_utf8(answer.body()).unwrap();
    let events: Vec<Value> = body
        .split_terminator("\n\n")
        .map(|event| {
            let (name, data) = event.split_once("\ndata: ").unwrap();
            let data: Value = serde_json::from_str(data).unwrap();
            assert_eq!(data["type"], name.strip_prefix("event: ").unwrap());
            data
        })
        .collect();
    let gather = |kind: &str| -> String {
        let deltas = events.iter().filter(|event| event["type"] == kind);
        deltas.map(|e| e["delta"].as_str().unwrap()).collect()
    };
    let items: Vec<Value> = answer
        .items
        .iter()
        .map(|item| serde_json::from_str(item).unwrap())
        .collect();
    let done: Vec<Value> = events
        .iter()
        .filter(|event| event["type"] == "response.output_item.done")
        .map(|event| event["item"].clone())
        .collect();
    assert_eq!(done, items);
    assert_eq!(events.last().unwrap()["response"]["output"], json!(items));
    assert_eq!(gather("response.output_text.delta"), answer.text);
    assert_eq!(items[1]["content"][0]["text"], answer.text);
    assert_eq!(items[1]["phase"], "commentary");
    assert_eq!(
        gather("response.function_call_arguments.delta"),
        items[2]["arguments"].as_str().unwrap()
    );
    assert_eq!(items[2]["arguments"], r#"{"command":"printf 'a: b'"}"#);
    for (number, event) in events.iter().enumerate() {
        assert_eq!(event["sequence_number"], number);
    }
    assert_eq!(calls(&[("a", "x", "{}"), ("b", "y", "{}")]).items.len(), 2);
    assert_ne!(call("c", "d").items, call("c", "d").items);
}

#[test]
fn terminal_is_a_controlling_one_of_the_size_asked_for() {
    let script =
        r#"[[ -t 0 && -t 1 && -t 2 ]] && echo all three >/dev/tty; stty size; env | sort; exit 7"#;
    let mut tty = Tty::start(
        Size { rows: 30, cols: 20 },
        bash(script).env("ONLY", "this"),
    );
    assert_eq!(tty.wait_exit(), 7);
    let shown = tty.plain();
    assert!(shown.starts_with("all three\r\n30 20\r\n"), "{shown}");
    let mut names: Vec<&str> = shown
        .lines()
        .filter_map(|line| Some(line.split_once('=')?.0))
        .collect();
    names.retain(|name| !matches!(*name, "PWD" | "SHLVL" | "_"));
    assert_eq!(names, ["ONLY", "PATH"]);
}

#[test]
fn terminal_is_read_as_a_person_sees_it() {
    let script = "printf '\\e]0;title\\a\\e[1mYou> \\e[0m'; read -r x; printf 'got %s, 12345678901234567890\\n' \"$x\"; read -r y";
    let mut tty = Tty::start(Size { rows: 5, cols: 20 }, &bash(script));
    tty.wait_for("You> ");
    tty.send_line("hello");
    tty.wait_for("got hello, 1234567890123");
    let rows = ["You> hello", "got hello, 123456789", "01234567890", "", ""];
    tty.wait_for("4567890\r\n");
    assert_eq!(tty.screen(), rows);
    assert_eq!(tty.plain_after(0).lines().next(), Some("You> hello"));
    assert!(tty.raw().starts_with(b"\x1b]0;title\x07\x1b[1mYou> "));
    tty.send("\x04");
    assert_eq!(tty.wait_exit(), 1, "read met the end of input");
}

#[test]
fn terminal_resizes_signals_and_hangs_up() {
    let script = "trap 'stty size; echo resized' WINCH; echo ready; while :; do read -t 1 x; done";
    let mut tty = Tty::start(SIZE, &bash(script));
    tty.wait_for("ready");
    tty.resize(Size { rows: 10, cols: 33 });
    tty.wait_for("10 33");
    tty.signal(Signal::TERM);
    assert_eq!(tty.wait_exit(), -15);

    let mut tty = Tty::start(SIZE, &bash("trap 'exit 9' HUP; echo ready; read x; read x"));
    tty.wait_for("ready");
    tty.close_master();
    assert_eq!(tty.wait_exit(), 9);
}

#[test]
fn terminal_settings_are_seen_after_the_end() {
    let mut quiet = Tty::start(SIZE, &bash("echo ready; read x; stty -echo"));
    quiet.wait_for("ready");
    let before = quiet.termios();
    quiet.send_line("");
    assert_eq!(quiet.wait_exit(), 0);
    assert_ne!(quiet.termios(), before);

    let mut kept = Tty::start(SIZE, &bash("echo ready; read x; stty -echo; stty echo"));
    kept.wait_for("ready");
    let before = kept.termios();
    kept.send_line("");
    assert_eq!(kept.wait_exit(), 0);
    assert_eq!(kept.termios(), before);
}

#[test]
fn terminal_takes_only_the_descriptors_it_should() {
    let home = Home::empty();
    let path = home.in_work("out");
    let script = "for n in 0 1 2; do [ -t $n ] && echo $n is a terminal; done; echo said >&2; cat";
    let instead = Instead {
        stdin: Some(Stdio::null()),
        stdout: Some(std::fs::File::create(&path).unwrap().into()),
        stderr: None,
    };
    let mut tty = Tty::start_with(SIZE, &bash(script), instead);
    assert_eq!(tty.wait_exit(), 0);
    assert_eq!(tty.plain(), "said\r\n");
    assert_eq!(read(path), b"2 is a terminal\n");
}

#[test]
fn nothing_outlives_its_value() {
    let mark = mark();
    let script = format!("trap '' HUP TERM; echo ready; while :; do read x; done # {mark}");
    let tty = Tty::start(SIZE, &bash(&script));
    tty.wait_for("ready");
    assert_eq!(alive(&mark).len(), 1);
    drop(tty);
    until("the end of it", || nothing_alive(&mark));
}

#[test]
fn home_reads_what_is_on_disk() {
    let endpoint = Endpoint::start([]);
    let home = Home::new(&endpoint);
    home.configure("path", "/bin");
    let config: Value = serde_json::from_slice(&read(home.config_path())).unwrap();
    assert_eq!(config["base_url"], endpoint.base_url());
    assert_eq!(config["path"], "/bin");
    let sessions = home.mino_home.join("sessions");
    std::fs::create_dir(&sessions).unwrap();
    let id = "0123456789abcdef0123456789abcdef";
    let lines = "{\"kind\":\"tool_result\",\"result\":{\"status\":\"denied\"}}\n{\"kind\":\"turn_end\",\"status\":\"failed\"}\n";
    std::fs::write(sessions.join(format!("{id}.jsonl")), lines).unwrap();
    std::fs::write(sessions.join(format!("{id}-recovery-1.jsonl")), "x").unwrap();
    home.wait_for_records("turn_end", 1);
    assert_eq!(home.only_session(), id);
    assert_eq!(home.kinds(), ["tool_result", "turn_end"]);
    assert_eq!(home.result_statuses(), ["denied"]);
    assert_eq!(home.turn_ends(), ["failed"]);
    assert!(mode(home.journal_path()) & 0o600 == 0o600);
}
