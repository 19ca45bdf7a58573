//! The model client against servers that speak raw bytes: retries, cuts, silence, refusals, TLS,
//! proxies. What is framed and parsed how is tested beside the code.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::string_slice
)]

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use mino::model::wire::Wire;
use mino::model::{Client, ModelError, OutputClosed, Progress, Reply};
use mino::step::{Definition, Input, Secret, Service, Spelling};
use mino::sys::signal::{Signal, Stop};
use serde_json::{Value, json};

const KEY: &str = "sk-test-0123456789abcdef";

// --- a server -------------------------------------------------------------------------------

struct Request {
    head: String,
    body: Vec<u8>,
}

impl Request {
    fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }
}

/// What is done with one connection once its request has been read.
type Handler = Box<dyn FnOnce(&mut TcpStream) + Send>;

/// Answers one connection after the other, one handler each, and then listens no more: a request
/// too many finds nobody.
struct Server {
    url: String,
    requests: Arc<Mutex<Vec<Request>>>,
}

impl Server {
    fn new(handlers: Vec<Handler>) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/v1", listener.local_addr().unwrap());
        let requests = Arc::new(Mutex::new(Vec::new()));
        let seen = requests.clone();
        thread::spawn(move || {
            for handler in handlers {
                let (mut stream, _) = listener.accept().unwrap();
                let request = read_request(&mut stream);
                seen.lock().unwrap().push(request);
                handler(&mut stream);
            }
        });
        Server { url, requests }
    }

    fn requests(&self) -> Vec<Request> {
        std::mem::take(&mut self.requests.lock().unwrap())
    }
}

fn read_head(stream: &mut impl Read) -> String {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    String::from_utf8(head).unwrap()
}

fn read_request(stream: &mut impl Read) -> Request {
    let head = read_head(stream);
    let length = head.lines().find_map(|line| {
        line.to_ascii_lowercase()
            .strip_prefix("content-length: ")?
            .parse()
            .ok()
    });
    let mut body = vec![0; length.expect("a request without a length")];
    stream.read_exact(&mut body).unwrap();
    Request { head, body }
}

/// The bytes of a whole answer whose end is the end of the connection.
fn answer(status: &str, headers: &str, body: &str) -> Vec<u8> {
    format!("HTTP/1.1 {status}\r\n{headers}\r\n{body}").into_bytes()
}

fn sending(bytes: impl Into<Vec<u8>>) -> Handler {
    let bytes = bytes.into();
    Box::new(move |stream| {
        // Whoever has heard enough hangs up, and the rest of what is sent goes nowhere.
        let _ = stream.write_all(&bytes);
    })
}

const SSE: &str = "content-type: text/event-stream\r\n";

fn stream(body: &str) -> Handler {
    sending(answer("200 OK", SSE, body))
}

fn status(status: &str, headers: &str, body: &str) -> Handler {
    sending(answer(status, headers, body))
}

fn delta(text: &str) -> String {
    let event = json!({"type": "response.output_text.delta", "delta": text});
    format!("data: {event}\n\n")
}

fn completed(items: Value) -> String {
    let response = json!({"status": "completed", "output": items});
    format!(
        "data: {}\n\n",
        json!({"type": "response.completed", "response": response})
    )
}

fn hello() -> String {
    let content = json!([{"type": "output_text", "text": "Hello"}]);
    delta("Hello")
        + &completed(json!([{"type": "message", "role": "assistant", "content": content}]))
}

fn error_body(code: &str, message: &str) -> String {
    json!({"error": {"code": code, "message": message, "type": "x", "param": null}}).to_string()
}

// --- a client -------------------------------------------------------------------------------

fn service(url: &str) -> Service {
    Service {
        base_url: url.into(),
        model: "model-1".into(),
        key: Some(Secret::new(KEY)),
        key_source: "MINO_API_KEY".into(),
        idle_seconds: 20,
        proxy: None,
        roots: None,
    }
}

const TOOL: Definition = Definition {
    name: "bash",
    description: "Runs a command",
    parameters: r#"{"type":"object"}"#,
};

fn new_client(service: Service, stop: &Stop) -> Result<Client, ModelError> {
    Client::new(service, "Be brief.", &[TOOL], stop.clone())
}

fn client(service: Service) -> Client {
    new_client(service, &Stop::new().unwrap()).unwrap()
}

fn question(text: &str) -> Input {
    let mut turn = Vec::new();
    Wire.question(text, &mut turn);
    Input {
        history: Arc::default(),
        turn: Arc::new(turn),
    }
}

/// What came of a request, and all that was reported meanwhile.
struct Asked {
    result: Result<Reply, ModelError>,
    texts: Vec<String>,
    notices: Vec<String>,
    budget: u32,
}

impl Asked {
    fn error(&self) -> &ModelError {
        self.result.as_ref().expect_err("a failure")
    }

    /// The message as a person reads it. It never contains the key.
    fn message(&self) -> String {
        let message = self.error().to_string();
        assert!(!message.contains(KEY), "{message}");
        assert!(!message.contains(['\n', '\u{1b}']), "{message:?}");
        message
    }

    fn text(&self) -> &str {
        self.result.as_ref().expect("a reply").text()
    }
}

fn ask_with(client: &mut Client, input: &Input, mut budget: u32) -> Asked {
    let (mut texts, mut notices) = (Vec::new(), Vec::new());
    let result = client.respond(input, &mut budget, &mut |progress| {
        match progress {
            Progress::Waiting => {}
            Progress::Text(text) => texts.push(text.to_owned()),
            Progress::Notice(notice) => notices.push(notice.to_owned()),
        }
        Ok(())
    });
    Asked {
        result,
        texts,
        notices,
        budget,
    }
}

fn ask(url: &str) -> Asked {
    ask_with(&mut client(service(url)), &question("Hi"), 8)
}

// --- requests -------------------------------------------------------------------------------

#[test]
fn a_request_is_what_the_service_expects() {
    let server = Server::new(vec![stream(&hello()), stream(&hello())]);
    let mut input = question("Hi");
    let asked = ask(&format!("{}/", server.url));
    assert_eq!((asked.text(), asked.budget), ("Hello", 7));
    input.history = Arc::new(b"{\"type\": \"x\"}".to_vec());
    ask_with(&mut client(service(&server.url)), &input, 8);
    let requests = server.requests();
    let head = requests[0].head.to_ascii_lowercase();
    assert!(
        head.starts_with("post /v1/responses http/1.1\r\n"),
        "{head}"
    );
    for line in [
        &format!("authorization: bearer {KEY}"),
        "content-type: application/json",
        "accept: text/event-stream",
        &format!("user-agent: mino/{}", env!("CARGO_PKG_VERSION")),
    ] {
        assert_eq!(
            head.lines().filter(|it| *it == line).count(),
            1,
            "{line}: {head}"
        );
    }
    assert!(
        !head.contains("accept-encoding") && !head.contains("transfer-encoding"),
        "{head}"
    );
    let text = json!([{"type": "input_text", "text": "Hi"}]);
    let question = json!({"type": "message", "role": "user", "content": text});
    assert_eq!(requests[0].json()["input"], json!([question]));
    assert_eq!(
        requests[1].json()["input"],
        json!([{"type": "x"}, question])
    );
    // The common prefix ends where the history begins, and the history goes as it is.
    let start = requests[0]
        .body
        .windows(9)
        .position(|it| it == b"\"input\":[")
        .unwrap()
        + 9;
    assert_eq!(requests[0].body[..start], requests[1].body[..start]);
    assert!(requests[1].body[start..].starts_with(b"{\"type\": \"x\"},"));
}

#[test]
fn without_a_key_nothing_is_authorized() {
    let server = Server::new(vec![stream(&hello())]);
    let mut service = service(&server.url);
    service.key = None;
    ask_with(&mut client(service), &question("Hi"), 8);
    assert!(
        !server.requests()[0]
            .head
            .to_ascii_lowercase()
            .contains("authorization")
    );
}

#[test]
fn settings_that_cannot_be_used_are_named_and_the_key_is_not() {
    let with = |change: &dyn Fn(&mut Service)| {
        let mut service = service("http://127.0.0.1:1/v1");
        change(&mut service);
        let error = new_client(service, &Stop::new().unwrap()).err().unwrap();
        assert!(matches!(error, ModelError::Settings(_)), "{error}");
        error.to_string()
    };
    let message = with(&|it| it.key = Some(Secret::new(format!("{KEY}\nx"))));
    assert!(
        message.contains("MINO_API_KEY") && !message.contains(KEY),
        "{message}"
    );
    assert!(with(&|it| it.base_url = "not a url".into()).contains("base_url"));
    for value in [
        "",
        "http://",
        "r32/?//52:**",
        "socks5://127.0.0.1:1",
        "ftp://secret@x",
    ] {
        let message = with(&|it| it.proxy = Some(("ALL_PROXY", value.into())));
        assert!(
            message.contains("ALL_PROXY") && !message.contains("secret"),
            "{message}"
        );
    }
    let broken = "-----BEGIN CERTIFICATE-----\nMIIB";
    let no_der = "-----BEGIN CERTIFICATE-----\naGVsbG8=\n-----END CERTIFICATE-----\n";
    for pem in ["", "junk", broken, no_der] {
        let message = with(&|it| it.roots = Some(("/tmp/ca.pem".into(), pem.into())));
        assert!(
            message.contains("SSL_CERT_FILE names \"/tmp/ca.pem\""),
            "{message}"
        );
    }
}

// --- streams --------------------------------------------------------------------------------

/// Text that came in one read goes out in one piece, and before the next is there: the server waits
/// for the first piece to be reported before it sends the second.
#[test]
fn text_is_reported_as_it_arrives_all_of_one_read_at_once() {
    let (shown, seen) = mpsc::channel::<()>();
    let server = Server::new(vec![Box::new(move |stream| {
        let first = [delta("a"), delta("b"), delta("世界")].concat();
        stream.write_all(&answer("200 OK", SSE, &first)).unwrap();
        seen.recv().unwrap();
        // A character cut in two by the network.
        let second = delta("é");
        let middle = second.find('é').unwrap() + 1;
        stream.write_all(&second.as_bytes()[..middle]).unwrap();
        stream.write_all(&second.as_bytes()[middle..]).unwrap();
        stream.write_all(completed(json!([])).as_bytes()).unwrap();
    })]);
    let mut texts = Vec::new();
    let result = client(service(&server.url)).respond(&question("Hi"), &mut 8, &mut |progress| {
        if let Progress::Text(text) = progress {
            texts.push(text.to_owned());
            let _ = shown.send(());
        }
        Ok(())
    });
    assert_eq!(result.unwrap().text(), "ab世界é");
    assert_eq!(texts[0], "ab世界");
    assert_eq!(texts.concat(), "ab世界é");
}

#[test]
fn the_terminal_event_ends_it_though_the_server_keeps_the_connection() {
    let (ended, end) = mpsc::channel();
    let server = Server::new(vec![Box::new(move |stream| {
        let body = hello() + &delta(" and more");
        let chunk = format!(
            "transfer-encoding: chunked\r\n{SSE}\r\n{:x}\r\n{body}\r\n",
            body.len()
        );
        stream
            .write_all(format!("HTTP/1.1 200 OK\r\n{chunk}").as_bytes())
            .unwrap();
        // Never a last chunk: the client is the one who hangs up.
        ended.send(stream.read(&mut [0]).unwrap_or(0)).unwrap();
    })]);
    assert_eq!(ask(&server.url).text(), "Hello");
    assert_eq!(end.recv().unwrap(), 0);
}

#[test]
fn bodies_of_every_framing_and_type_are_read() {
    let body = hello();
    let (left, right) = body.split_at(17);
    let (left_length, right_length) = (left.len(), right.len());
    let chunked =
        format!("{left_length:x}\r\n{left}\r\n{right_length:X};x=y\r\n{right}\r\n0\r\n\r\n");
    let sized = format!("content-length: {}\r\n", body.len());
    let server = Server::new(vec![
        sending(answer(
            "200 OK",
            &format!("{SSE}transfer-encoding: chunked\r\n"),
            &chunked,
        )),
        sending(answer(
            "200 OK",
            &format!("Content-Type: text/event-stream;charset=UTF-8\r\n{sized}"),
            &body,
        )),
        sending(answer("200 OK", "", &body)),
        sending(answer("201 Created", "content-type: text/plain\r\n", &body)),
        sending(answer("200 OK", "content-encoding: identity\r\n", &body)),
        sending(format!("HTTP/1.0 200 OK\r\n{SSE}\r\n{body}")),
        sending(answer("200 OK", SSE, body.trim_end())),
    ]);
    for _ in 0..7 {
        assert_eq!(ask(&server.url).text(), "Hello");
    }
}

#[test]
fn text_that_was_never_streamed_is_shown_at_the_end() {
    let content = json!([{"type": "output_text", "text": "All at once"}]);
    let item = json!({"type": "message", "role": "assistant", "content": content});
    let server = Server::new(vec![stream(&completed(json!([item])))]);
    let asked = ask(&server.url);
    assert_eq!(
        (asked.text(), &asked.texts[..]),
        ("All at once", &["All at once".to_owned()][..])
    );
    assert_eq!(asked.result.unwrap().items().len(), 1);
}

#[test]
fn each_way_to_fail_has_its_own_words() {
    let failed = |code: &str| {
        let error = json!({"code": code, "message": "Boom \u{1b}[31m."});
        let response = json!({"status": "failed", "error": error});
        format!(
            "data: {}\n\n",
            json!({"type": "response.failed", "response": response})
        )
    };
    let nested = format!(
        "data: {}\n\n",
        json!({"type": "error", "error": {"message": KEY}})
    );
    let incomplete = |reason: Value| {
        let response = json!({"status": "incomplete", "incomplete_details": reason});
        format!(
            "data: {}\n\n",
            json!({"type": "response.incomplete", "response": response})
        )
    };
    for (end, words) in [
        (
            String::new(),
            "The answer was cut off before its end; ask again.",
        ),
        (
            "data: [DONE]\n\n".into(),
            "The answer was cut off before its end; ask again.",
        ),
        (
            failed("server_error"),
            "The server failed while it answered (server_error: Boom [31m; request req_1); ask again.",
        ),
        (
            failed("context_length_exceeded"),
            "The server says that the conversation is too long for the model \
             (context_length_exceeded: Boom [31m; request req_1); \
             start a new one with /new (mino ask --new).",
        ),
        (
            failed("cyber_policy"),
            "The server says that the provider's rules forbid the request \
             (cyber_policy: Boom [31m; request req_1); ask something else.",
        ),
        (
            failed("insufficient_quota"),
            "The server failed while it answered (insufficient_quota: Boom [31m; request req_1); \
             check the plan and the billing of the account.",
        ),
        (
            nested,
            "The server failed while it answered ((key); request req_1); ask again.",
        ),
        (
            incomplete(json!({"reason": "max_output_tokens"})),
            "The answer is incomplete: it reached the output limit (max_output_tokens); \
             ask for a shorter one.",
        ),
        (
            incomplete(json!({"reason": "content_filter"})),
            "The answer is incomplete: a filter stopped it (content_filter); ask something else.",
        ),
        (
            incomplete(Value::Null),
            "The answer is incomplete: the server stopped it; ask again.",
        ),
        (
            completed(json!([{"type": "function_call", "name": "bash", "arguments": "{}"}])),
            "The server's answer can't be used: item 1 is a tool call without a call_id of \
             1 to 512 bytes; ask again.",
        ),
        (
            format!(": {}", " ".repeat(17 << 20)),
            "The answer is larger than Mino takes (8 MiB of output, 16 MiB an event, \
             256 MiB in all); ask for less.",
        ),
    ] {
        let body = delta("Half an answer") + &end;
        let headers = format!("{SSE}x-request-id: req_1\r\n");
        let server = Server::new(vec![sending(answer("200 OK", &headers, &body))]);
        let asked = ask(&server.url);
        assert_eq!(asked.message(), words);
        // What came before stays on the screen, and is never asked for again.
        assert_eq!(asked.texts.concat(), "Half an answer");
        assert_eq!((asked.budget, asked.notices.len()), (7, 0));
    }
}

#[test]
fn what_is_no_stream_is_named_for_what_it_is() {
    let page = format!("<html>\n\u{1b}[2J<b>Log in</b> {}", "x".repeat(1_000));
    for (headers, body, words) in [
        (
            "content-type: text/html\r\n",
            page.as_str(),
            r#"200 with "text/html" and no event stream (<html> [2J<b>Log in</b> xx"#,
        ),
        (
            "",
            page.as_str(),
            "200 with no content type and no event stream (<html>",
        ),
        (
            "content-type: application/json; charset=utf-8\r\n",
            r#"{"error":"no such thing"}"#,
            r#"200 with "application/json; charset=utf-8" and no event stream (no such thing); check base_url"#,
        ),
        (
            SSE,
            r#" {"error":"x"}"#,
            r#""text/event-stream" and no event stream (x)"#,
        ),
        (
            "content-type: text/html\r\n",
            "",
            r#"200 with "text/html" and no event stream; check"#,
        ),
    ] {
        let server = Server::new(vec![status("200 OK", headers, body)]);
        let asked = ask(&server.url);
        let message = asked.message();
        assert!(message.contains(words), "{message}");
        assert!(message.chars().count() < 500, "{message}");
        assert_eq!(asked.budget, 7);
    }
    let server = Server::new(vec![status(
        "200 OK",
        "content-encoding: gzip\r\n",
        "\u{1f}x",
    )]);
    let message = ask(&server.url).message();
    assert!(message.contains("compressed answer (gzip)"), "{message}");
    let server = Server::new(vec![status("403 x", "content-encoding: br\r\n", "\u{1f}x")]);
    let message = ask(&server.url).message();
    assert!(
        message.starts_with("The server answered 403; check"),
        "{message}"
    );
}

#[test]
fn large_items_and_echoes_are_fine() {
    let content = json!([{"type": "output_text", "text": "x".repeat(3 << 20)}]);
    let item = json!({"type": "message", "role": "assistant", "content": content});
    let done = format!(
        "data: {}\n\n",
        json!({"type": "response.output_item.done", "item": item})
    );
    let instructions = "i".repeat(9 << 20);
    let response = json!({"status": "completed", "instructions": instructions, "output": [item]});
    let end = json!({"type": "response.completed", "response": response});
    let server = Server::new(vec![stream(&format!("{done}data: {end}\n\n"))]);
    let asked = ask(&server.url);
    assert_eq!(asked.text().len(), 3 << 20);
}

#[test]
fn many_small_fragments_are_cheap() {
    let body = delta("ab").repeat(50_000) + &completed(json!([]));
    let server = Server::new(vec![stream(&body)]);
    let start = Instant::now();
    let asked = ask(&server.url);
    assert_eq!(asked.text().len(), 100_000);
    // A read takes many events, so there are far fewer pieces than fragments.
    assert!(asked.texts.len() < 5_000, "{}", asked.texts.len());
    assert!(
        start.elapsed() < Duration::from_secs(20),
        "{:?}",
        start.elapsed()
    );
}

// --- retries --------------------------------------------------------------------------------

#[test]
fn transient_failures_are_announced_and_sent_again_unchanged() {
    for code in ["408 x", "409 x", "429 x", "500 x", "503 x", "529 x"] {
        let number = &code[..3];
        let headers = "retry-after-ms: 1\r\nretry-after: 50\r\n";
        let busy = || status(code, headers, &error_body("busy", "Try\nlater."));
        let server = Server::new(vec![busy(), busy(), stream(&hello())]);
        let asked = ask(&server.url);
        assert_eq!((asked.text(), asked.budget), ("Hello", 5));
        let said = format!("The server answered {number} (busy: Try later); trying again in 0.1 s");
        assert_eq!(
            asked.notices,
            [format!("{said} (2 of 3)."), format!("{said} (3 of 3).")]
        );
        let requests = server.requests();
        assert_eq!(requests[0].body, requests[1].body);
        assert_eq!(requests[0].body, requests[2].body);
    }
}

#[test]
fn three_tries_are_enough_and_the_budget_may_allow_fewer() {
    let busy = || status("503 x", "retry-after: 0\r\n", "");
    for (budget, requests) in [(8, 3), (2, 2), (1, 1)] {
        let server = Server::new((0..requests).map(|_| busy()).collect());
        let asked = ask_with(&mut client(service(&server.url)), &question("Hi"), budget);
        assert_eq!(asked.message(), "The server answered 503; ask again later.");
        assert_eq!(asked.notices.len(), requests - 1);
        assert_eq!(asked.budget, budget - requests as u32);
    }
    let asked = ask_with(
        &mut client(service("http://127.0.0.1:1/v1")),
        &question("Hi"),
        0,
    );
    assert_eq!(*asked.error(), ModelError::NoRequestLeft);
}

#[test]
fn a_long_wait_is_not_begun() {
    for (headers, seconds) in [
        ("retry-after: 61\r\n", 61),
        ("retry-after-ms: 120000.5\r\n", 121),
    ] {
        let server = Server::new(vec![status(
            "429 x",
            headers,
            &error_body("slow_down", "m"),
        )]);
        let message = ask(&server.url).message();
        let words = format!(
            "The server answered 429 (slow_down: m); it asks to wait {seconds} s, so ask again then."
        );
        assert_eq!(message, words);
    }
}

#[test]
fn without_a_named_wait_it_is_a_second() {
    let server = Server::new(vec![status("500 x", "", "not json"), stream(&hello())]);
    let start = Instant::now();
    let asked = ask(&server.url);
    assert_eq!(asked.text(), "Hello");
    assert_eq!(
        asked.notices,
        ["The server answered 500 (not json); trying again in 1 s (2 of 3)."]
    );
    assert!(start.elapsed() >= Duration::from_secs(1));
}

#[test]
fn what_cannot_succeed_is_asked_once() {
    for (code, body, words) in [
        (
            "400 x",
            error_body("bad_thing", "No."),
            "answered 400 (bad_thing: No; request req_7); check base_url and model, or start",
        ),
        (
            "400 x",
            r#"{"detail":"Unsupported parameter: y"}"#.into(),
            "400 (Unsupported parameter: y; request req_7)",
        ),
        ("400 x", String::new(), "400 (request req_7)"),
        (
            "401 x",
            error_body("invalid_api_key", &format!("Wrong key {KEY}")),
            "401 (invalid_api_key: Wrong key (key); request req_7); check the API key, which came from MINO_API_KEY.",
        ),
        (
            "402 x",
            error_body("no_credit", "m"),
            "402 (no_credit: m; request req_7); check the plan and the billing",
        ),
        (
            "403 x",
            error_body("region", "m"),
            "403 (region: m; request req_7); check what the account",
        ),
        ("413 x", String::new(), "413 (request req_7)"),
        (
            "422 x",
            error_body("unknown_parameter", "'phase'"),
            "422 (unknown_parameter",
        ),
        (
            "429 x",
            error_body("insufficient_quota", "m"),
            "429 (insufficient_quota: m; request req_7); check the plan and the billing",
        ),
        (
            "429 x",
            r#"{"error":{"type":"insufficient_quota","code":null,"message":"m"}}"#.into(),
            "429 (insufficient_quota",
        ),
        (
            "429 x",
            error_body("credit_balance_exhausted", "m"),
            "429 (credit_balance_exhausted",
        ),
        (
            "404 x",
            error_body("model_not_found", "m"),
            "404 (model_not_found: m; request req_7); check the model and base_url: the request went to \"http://127.0.0.1:",
        ),
        (
            "400 x",
            "\u{1b}[31m<h1>Bad \u{202e}Gateway</h1>".into(),
            "400 ([31m<h1>Bad Gateway</h1>; request req_7)",
        ),
    ] {
        let server = Server::new(vec![status(code, "x-request-id: req_7\r\n", &body)]);
        let asked = ask(&server.url);
        let message = asked.message();
        assert!(message.contains(words), "{message}");
        assert_eq!((asked.budget, asked.notices.len()), (7, 0), "{code}");
        if code.starts_with("404") {
            assert!(
                message.contains(&format!("{}/responses", server.url)),
                "{message}"
            );
        }
    }
    let long = format!("{{\"error\":\"{}\"}}", "y".repeat(100_000));
    let server = Server::new(vec![status("400 x", "", &long)]);
    assert!(ask(&server.url).message().chars().count() < 700);
}

#[test]
fn a_conversation_too_long_names_the_way_on() {
    for message in [
        "request (9019 tokens) exceeds the available context size (4096 tokens), try increasing it",
        "Your input exceeds the context window of this model.",
    ] {
        let server = Server::new(vec![status("400 x", "", &error_body("x", message))]);
        let asked = ask(&server.url);
        assert!(matches!(
            asked.error(),
            ModelError::TooLong {
                status: Some(400),
                ..
            }
        ));
        let shown = asked.message();
        assert!(shown.contains("400") && shown.contains("/new"), "{shown}");
        assert!(shown.contains(message.trim_end_matches('.')), "{shown}");
    }
}

#[test]
fn a_cut_is_retried_before_the_first_event_and_never_after() {
    let hang_up: fn() -> Handler = || Box::new(|stream| stream.shutdown(Shutdown::Both).unwrap());
    let reset_body = "content-length: 50\r\n";
    let early: Vec<Handler> = vec![
        hang_up(),
        sending("HTTP/1.1 200 OK\r\ncontent-"),
        stream(""),
        stream(": waiting\n\n: waiting\n\n"),
        stream("data: {\"type\":\"response.crea"),
        stream("data: [DONE]\n\n"),
        sending(answer("200 OK", &format!("{SSE}{reset_body}"), ": x\n\n")),
    ];
    // Side by side, since each waits for a second before it asks again.
    thread::scope(|scope| {
        for early in early {
            scope.spawn(|| {
                let server = Server::new(vec![early, stream(&hello())]);
                let asked = ask(&server.url);
                assert_eq!((asked.text(), asked.budget), ("Hello", 6));
                assert_eq!(
                    asked.notices,
                    ["The server closed the connection before it answered; trying again in 1 s (2 of 3)."]
                );
            });
        }
    });
    for late in [
        stream("data: {\"type\":\"response.created\"}\n\n"),
        stream(
            "data: {\"type\":\"response.reasoning_text.delta\",\"delta\":\"x\"}\n\ndata: {\"typ",
        ),
        sending(answer(
            "200 OK",
            &format!("{SSE}content-length: 5000\r\n"),
            &delta("x"),
        )),
        sending(answer(
            "200 OK",
            &format!("{SSE}transfer-encoding: chunked\r\n"),
            &format!("FF\r\n{}", delta("x")),
        )),
    ] {
        let server = Server::new(vec![late]);
        let asked = ask(&server.url);
        assert_eq!(*asked.error(), ModelError::Cut { begun: true });
        assert_eq!((asked.budget, asked.notices.len()), (7, 0));
    }
}

/// No connection outlives its request, so a server that closes idle ones costs nobody a turn.
#[test]
fn every_request_has_a_fresh_connection() {
    let body = hello();
    let sized = || {
        let headers = format!(
            "{SSE}connection: keep-alive\r\ncontent-length: {}\r\n",
            body.len()
        );
        sending(answer("200 OK", &headers, &body))
    };
    let server = Server::new(vec![sized(), sized()]);
    let mut client = client(service(&server.url));
    for _ in 0..2 {
        let asked = ask_with(&mut client, &question("Hi"), 8);
        assert_eq!((asked.text(), asked.budget), ("Hello", 7));
    }
}

// --- what a server refuses -------------------------------------------------------------------

/// A server that checks the pairing of reasoning items both ways, and cannot read one of them.
fn strict(stream: &mut TcpStream, body: &Value) {
    let items = body["input"].as_array().unwrap();
    let error = items.iter().enumerate().find_map(|(at, item)| {
        let next = items.get(at + 1);
        let before = at.checked_sub(1).map(|at| &items[at]);
        if item["type"] == "reasoning" && item["encrypted_content"] == "foreign" {
            return Some(error_body("invalid_encrypted_content", "can't be verified"));
        }
        if item["type"] == "reasoning" && next.is_none_or(|it| it["role"] == "user") {
            return Some(error_body(
                "x",
                "provided without its required following item",
            ));
        }
        if item
            .get("id")
            .is_some_and(|id| id.as_str().unwrap().starts_with("msg_"))
            && before.is_none_or(|it| it["type"] != "reasoning")
        {
            return Some(error_body(
                "x",
                "provided without its required 'reasoning' item",
            ));
        }
        None
    });
    let bytes = match error {
        Some(error) => answer("400 x", "", &error),
        None => answer("200 OK", SSE, &hello()),
    };
    stream.write_all(&bytes).unwrap();
}

#[test]
fn reasoning_that_cannot_be_read_is_left_out_for_the_run_with_the_ids_that_pair_with_it() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/v1", listener.local_addr().unwrap());
    let server = thread::spawn(move || {
        (0..3)
            .map(|_| {
                let (mut stream, _) = listener.accept().unwrap();
                let request = read_request(&mut stream);
                strict(&mut stream, &request.json());
                request
            })
            .collect::<Vec<_>>()
    });
    let message = r#"{"id":"msg_1","type":"message","role":"assistant","content":[ {"type":"output_text","text":"\u00e9"} ]}"#;
    let reasoning =
        r#"{"type":"reasoning","id":"rs_1","summary":[],"encrypted_content":"foreign"}"#;
    let mut input = question("Hi");
    let first = String::from_utf8(input.turn.to_vec()).unwrap();
    input.history = Arc::new(format!("{first},{reasoning},{message}").into_bytes());
    let mut client = client(service(&url));
    let asked = ask_with(&mut client, &input, 8);
    assert_eq!((asked.text(), asked.budget), ("Hello", 6));
    assert_eq!(
        asked.notices,
        ["The server can't read the conversation's reasoning items; going on without them."]
    );
    let again = ask_with(&mut client, &input, 8);
    assert_eq!(
        (again.text(), again.budget, again.notices.len()),
        ("Hello", 7, 0)
    );
    let bodies: Vec<_> = server
        .join()
        .unwrap()
        .into_iter()
        .map(|it| it.body)
        .collect();
    let bare = r#"{"type":"message","role":"assistant","content":[ {"type":"output_text","text":"\u00e9"} ]}"#;
    let sent = String::from_utf8(bodies[1].clone()).unwrap();
    assert!(
        sent.contains(&format!("\"input\":[{first},{bare},{first}]")),
        "{sent}"
    );
    assert_eq!(bodies[1], bodies[2]);
}

#[test]
fn an_optional_field_that_a_server_does_not_know_is_left_out_once() {
    let refuse = |param: &str, code: &str| {
        let error = json!({"error": {"code": code, "param": param, "message": "Unknown"}});
        status("400 x", "", &error.to_string())
    };
    let server = Server::new(vec![
        refuse("include", "unknown_parameter"),
        refuse("parallel_tool_calls", "unsupported_parameter"),
        refuse("input[1].phase", "unknown_parameter"),
        refuse("include", "unknown_parameter"),
        stream(&hello()),
    ]);
    let mut client = client(service(&server.url));
    let mut input = question("Hi");
    input.history =
        Arc::new(br#"{"type":"message","role":"assistant","phase":"commentary"}"#.to_vec());
    let asked = ask_with(&mut client, &input, 8);
    // The fourth refusal is of what had been left out already, so it stands.
    assert!(
        asked
            .message()
            .contains("answered 400 (unknown_parameter: Unknown)")
    );
    assert_eq!((asked.budget, asked.notices.len()), (4, 3));
    ask_with(&mut client, &input, 8).result.unwrap();
    let requests = server.requests();
    let has = |at: usize, name: &str| requests[at].json().get(name).is_some();
    let phase = |at: usize| requests[at].json()["input"][0].get("phase").is_some();
    let seen: Vec<_> = (0..5)
        .map(|at| {
            (
                has(at, "include"),
                has(at, "parallel_tool_calls"),
                phase(at),
            )
        })
        .collect();
    assert_eq!(
        seen,
        [
            (true, true, true),
            (false, true, true),
            (false, false, true),
            (false, false, false),
            (false, false, false),
        ]
    );
}

#[test]
fn a_repeat_needs_a_request_that_is_left() {
    let body = error_body("invalid_encrypted_content", "m");
    let server = Server::new(vec![status("400 x", "", &body)]);
    let asked = ask_with(&mut client(service(&server.url)), &question("Hi"), 1);
    assert!(matches!(
        asked.error(),
        ModelError::Status { status: 400, .. }
    ));
    assert_eq!(asked.budget, 0);
}

// --- connections ----------------------------------------------------------------------------

#[test]
fn what_cannot_be_reached_is_named_with_its_cause() {
    let unused = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let mut client_ = client(service(&format!("http://{unused}/v1")));
    let asked = ask_with(&mut client_, &question("Hi"), 2);
    let message = asked.message();
    assert!(
        message.starts_with(&format!(
            "Cannot connect to \"{unused}\": Connection refused"
        )),
        "{message}"
    );
    assert_eq!((asked.budget, asked.notices.len()), (0, 1));
    assert!(
        asked.notices[0].contains("trying again in 1 s (2 of 3)"),
        "{:?}",
        asked.notices
    );

    let server = Server::new(vec![sending("SSH-2.0-x\r\n")]);
    let asked = ask_with(&mut client(service(&server.url)), &question("Hi"), 1);
    let message = asked.message();
    assert!(message.contains(": protocol: "), "{message}");

    let asked = ask_with(
        &mut client(service("http://mino-test.invalid/v1")),
        &question("Hi"),
        1,
    );
    let message = asked.message();
    assert!(
        message.starts_with("Cannot connect to \"mino-test.invalid\": "),
        "{message}"
    );
}

#[test]
fn redirects_are_named_and_not_followed() {
    let elsewhere = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = elsewhere.local_addr().unwrap();
    for code in ["301 x", "307 x", "308 x"] {
        let location = format!("location: http://user:pass@{address}/v1/responses\r\n");
        let server = Server::new(vec![status(code, &location, "moved")]);
        let asked = ask(&server.url);
        let number = &code[..3];
        let words = format!(
            "The server answered {number} and points to \"127.0.0.1\", which is not followed; \
             set base_url to the final address."
        );
        assert_eq!((asked.message(), asked.budget), (words, 7));
    }
    elsewhere.set_nonblocking(true).unwrap();
    assert!(elsewhere.accept().is_err());
}

#[test]
fn silence_ends_at_its_limit_and_comments_are_life() {
    let quiet = |bytes: Vec<u8>| -> Handler {
        Box::new(move |stream| {
            stream.write_all(&bytes).unwrap();
            // Until the client hangs up.
            let _ = stream.read(&mut [0]);
        })
    };
    let mut service = service("");
    service.idle_seconds = 1;
    let ask = |url: &str| {
        let mut service = service.clone();
        service.base_url = url.into();
        ask_with(&mut client(service), &question("Hi"), 8)
    };
    let words =
        "The server was silent for 1 s; ask again, or raise idle_timeout_seconds in config.json.";
    let head = format!("HTTP/1.1 200 OK\r\n{SSE}\r\n");
    thread::scope(|scope| {
        for start in [String::new(), head.clone(), head + &delta("x")] {
            scope.spawn(|| {
                let server = Server::new(vec![quiet(start.into_bytes())]);
                let asked = ask(&server.url);
                assert_eq!((asked.message().as_str(), asked.budget), (words, 7));
            });
        }
    });
    let server = Server::new(vec![Box::new(|stream| {
        stream.write_all(&answer("200 OK", SSE, "")).unwrap();
        for _ in 0..8 {
            stream.write_all(b": thinking\n\n").unwrap();
            // Time is what is tested here: 1.6 s in all, 0.2 s without a byte.
            thread::sleep(Duration::from_millis(200));
        }
        stream.write_all(hello().as_bytes()).unwrap();
    })]);
    assert_eq!(ask(&server.url).text(), "Hello");
}

#[test]
fn a_server_that_stops_reading_is_silent_too() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut service = service(&format!("http://{}/v1", listener.local_addr().unwrap()));
    service.idle_seconds = 1;
    let input = question(&"x".repeat(16 << 20));
    let asked = ask_with(&mut client(service), &input, 8);
    assert_eq!(*asked.error(), ModelError::Silent { seconds: 1 });
}

// --- signals --------------------------------------------------------------------------------

/// Asks until the server says where it is, then sends a signal; the answer must come at once.
fn cancelled_while(handlers: impl FnOnce(mpsc::Sender<()>) -> Vec<Handler>) -> Asked {
    let (there, reached) = mpsc::channel();
    let server = Server::new(handlers(there));
    let stop = Stop::new().unwrap();
    let mut client = new_client(service(&server.url), &stop).unwrap();
    let signals = signal_once(reached, stop);
    let asked = ask_with(&mut client, &question("Hi"), 8);
    let sent: Instant = signals.join().unwrap();
    assert!(
        sent.elapsed() < Duration::from_millis(900),
        "{:?}",
        sent.elapsed()
    );
    assert_eq!(*asked.error(), ModelError::Cancelled);
    asked
}

fn signal_once(reached: Receiver<()>, stop: Stop) -> thread::JoinHandle<Instant> {
    thread::spawn(move || {
        reached.recv().unwrap();
        let now = Instant::now();
        stop.request(Signal::Interrupt);
        now
    })
}

/// Sends `bytes`, says so, and keeps the connection until the client hangs up.
fn hold(bytes: Vec<u8>, there: mpsc::Sender<()>) -> Handler {
    Box::new(move |stream| {
        stream.write_all(&bytes).unwrap();
        there.send(()).unwrap();
        let _ = stream.read(&mut [0]);
    })
}

#[test]
fn a_signal_ends_every_wait() {
    cancelled_while(|there| vec![hold(Vec::new(), there)]);
    // A body that ends with the connection: the signal makes it look like a clean end.
    cancelled_while(|there| vec![hold(answer("200 OK", SSE, ""), there)]);
    let chunked = format!("HTTP/1.1 200 OK\r\n{SSE}transfer-encoding: chunked\r\n\r\n");
    cancelled_while(|there| vec![hold(chunked.into_bytes(), there)]);
    // The body of an error, which stalls: what is known of it no longer matters.
    for head in ["HTTP/1.1 400 x\r\n\r\n", "HTTP/1.1 500 x\r\n\r\nhalf"] {
        let asked = cancelled_while(|there| vec![hold(head.into(), there)]);
        assert_eq!(asked.notices.len(), 0);
    }
    let asked = cancelled_while(|there| {
        vec![Box::new(move |stream| {
            stream
                .write_all(&answer("503 x", "retry-after: 60\r\n", ""))
                .unwrap();
            stream.shutdown(Shutdown::Both).unwrap();
            there.send(()).unwrap();
        })]
    });
    assert_eq!(asked.budget, 7);
}

#[test]
fn after_a_signal_nothing_is_sent() {
    let stop = Stop::new().unwrap();
    stop.request(Signal::Terminate);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/v1", listener.local_addr().unwrap());
    let mut client = new_client(service(&url), &stop).unwrap();
    let asked = ask_with(&mut client, &question("Hi"), 8);
    assert_eq!(*asked.error(), ModelError::Cancelled);
    listener.set_nonblocking(true).unwrap();
    assert!(listener.accept().is_err());
}

#[test]
fn a_closed_output_ends_the_request() {
    for closed_at in ["waiting", "text", "notice"] {
        let server = Server::new(vec![
            status("503 x", "retry-after: 0\r\n", ""),
            stream(&hello()),
        ]);
        let mut client = client(service(&server.url));
        let result = client.respond(&question("Hi"), &mut 8, &mut |progress| {
            let now = match progress {
                Progress::Waiting => "waiting",
                Progress::Text(_) => "text",
                Progress::Notice(_) => "notice",
            };
            if now == closed_at {
                Err(OutputClosed)
            } else {
                Ok(())
            }
        });
        assert_eq!(result.err(), Some(ModelError::OutputClosed), "{closed_at}");
    }
}

// --- TLS and proxies ------------------------------------------------------------------------

/// A TLS server on loopback under a private authority; the authority's PEM.
fn tls_server(connections: usize) -> (std::net::SocketAddr, String) {
    let authority_key = rcgen::KeyPair::generate().unwrap();
    let mut authority = rcgen::CertificateParams::new(Vec::new()).unwrap();
    authority.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let pem = authority.self_signed(&authority_key).unwrap().pem();
    let issuer = rcgen::Issuer::new(authority, authority_key);
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate = rcgen::CertificateParams::new(vec!["localhost".into()])
        .unwrap()
        .signed_by(&key, &issuer)
        .unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(
            vec![certificate.der().clone()],
            rustls::pki_types::PrivateKeyDer::try_from(key.serialize_der()).unwrap(),
        )
        .unwrap();
    let config = Arc::new(config);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for _ in 0..connections {
            let (tcp, _) = listener.accept().unwrap();
            let session = rustls::ServerConnection::new(config.clone()).unwrap();
            let mut tls = rustls::StreamOwned::new(session, tcp);
            // A client that trusts nobody leaves within the handshake.
            if tls.conn.complete_io(&mut tls.sock).is_err() {
                continue;
            }
            let request = read_request(&mut tls);
            assert!(request.head.contains(KEY));
            tls.write_all(&answer("200 OK", SSE, &hello())).unwrap();
            tls.flush().unwrap();
        }
    });
    (address, pem)
}

#[test]
fn a_private_authority_is_trusted_where_it_is_named_and_nowhere_else() {
    let (address, pem) = tls_server(3);
    let mut service = service(&format!("https://localhost:{}/v1", address.port()));
    let asked = ask_with(&mut client(service.clone()), &question("Hi"), 8);
    let message = asked.message();
    assert!(
        message.contains("\"localhost:") && message.contains("UnknownIssuer"),
        "{message}"
    );
    assert!(asked.error().hint().unwrap().contains("SSL_CERT_FILE"));
    // A certificate does not get better by asking again.
    assert_eq!(asked.budget, 7);
    service.roots = Some(("ca.pem".into(), format!("# a comment\n{pem}").into_bytes()));
    assert_eq!(
        ask_with(&mut client(service.clone()), &question("Hi"), 8).text(),
        "Hello"
    );
    // It is valid for its name, not for the address.
    service.base_url = format!("https://{address}/v1");
    let message = ask_with(&mut client(service), &question("Hi"), 8).message();
    assert!(message.contains("not valid for name"), "{message}");
}

#[test]
fn tls_to_a_server_that_speaks_none_says_so() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let _ = stream.read(&mut [0; 64]);
        stream
            .write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            .unwrap();
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let asked = ask(&format!("https://{address}/v1"));
    assert!(
        matches!(asked.error(), ModelError::Unreachable { tls: true, .. }),
        "{:?}",
        asked.error()
    );
}

/// A proxy that answers one CONNECT, and tunnels where it agrees; what it was asked.
fn proxy(reply: &'static str) -> (std::net::SocketAddr, thread::JoinHandle<(String, Vec<u8>)>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let seen = thread::spawn(move || {
        let (mut client, _) = listener.accept().unwrap();
        let head = read_head(&mut client);
        let target = head.split(' ').nth(1).unwrap().to_owned();
        client
            .write_all(format!("HTTP/1.1 {reply}\r\n\r\n").as_bytes())
            .unwrap();
        if !reply.starts_with("200") {
            return (head, Vec::new());
        }
        let mut server = TcpStream::connect(target).unwrap();
        let (mut back_from, mut back_to) =
            (server.try_clone().unwrap(), client.try_clone().unwrap());
        thread::spawn(move || {
            let _ = std::io::copy(&mut back_from, &mut back_to);
            let _ = back_to.shutdown(Shutdown::Write);
        });
        let (mut passed, mut buffer) = (Vec::new(), [0; 4096]);
        while let Ok(read @ 1..) = client.read(&mut buffer) {
            passed.extend_from_slice(&buffer[..read]);
            if server.write_all(&buffer[..read]).is_err() {
                break;
            }
        }
        (head, passed)
    });
    (address, seen)
}

#[test]
fn a_proxy_tunnels_and_sees_no_key() {
    let (address, pem) = tls_server(1);
    let (proxy_address, seen) = proxy("200 OK");
    let mut service = service(&format!("https://localhost:{}/v1", address.port()));
    service.roots = Some(("ca.pem".into(), pem.into_bytes()));
    service.proxy = Some(("HTTPS_PROXY", format!("http://u:p%40ss@{proxy_address}")));
    let asked = ask_with(&mut client(service), &question("Hi"), 8);
    assert_eq!(asked.text(), "Hello");
    drop(asked);
    let (head, passed) = seen.join().unwrap();
    assert!(
        head.starts_with(&format!("CONNECT localhost:{} ", address.port())),
        "{head}"
    );
    // u:p@ss
    assert!(head.contains("Basic dTpwQHNz"), "{head}");
    assert!(!head.contains(KEY) && !passed.is_empty());
    assert!(!passed.windows(KEY.len()).any(|it| it == KEY.as_bytes()));
}

#[test]
fn a_proxy_that_refuses_or_is_dead_is_named_by_its_variable() {
    let (proxy_address, _seen) = proxy("407 Proxy Authentication Required");
    let mut service = service("https://api.example.com/v1");
    service.proxy = Some(("https_proxy", format!("http://u:secret@{proxy_address}")));
    let message = ask_with(&mut client(service.clone()), &question("Hi"), 1).message();
    let start = format!(
        "Cannot connect to \"api.example.com\" through the proxy \"{proxy_address}\" of https_proxy: "
    );
    assert!(
        message.starts_with(&start) && message.contains("407"),
        "{message}"
    );
    assert!(!message.contains("secret"), "{message}");
    let unused = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    service.proxy = Some(("ALL_PROXY", unused.to_string()));
    let message = ask_with(&mut client(service), &question("Hi"), 1).message();
    let words = format!("through the proxy \"{unused}\" of ALL_PROXY: Connection refused");
    assert!(message.contains(&words), "{message}");
}
