//! A scripted model: a loopback server that speaks raw bytes and keeps what it was sent.
//!
//! Owns: the script (one [`Answer`] for each request, in order) and the requests. Promises: bytes
//! go out exactly as scripted, each [`Piece`] by itself; a request that the script doesn't know is
//! kept, refused and fails the test. Leans on nothing but std, so that no HTTP library's care hides
//! a client's fault. Gives up: requests need a Content-Length.

use std::collections::VecDeque;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::PATIENCE;

/// One request as it came.
#[derive(Clone, Debug)]
pub struct Request {
    pub method: String,
    pub path: String,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Request {
    /// The value of a header, whatever the case of its name.
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = |(n, _): &&(String, String)| n.eq_ignore_ascii_case(name);
        self.headers.iter().find(found).map(|(_, value)| &**value)
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).expect("a body that is JSON")
    }

    /// The exact text of each item of `input`.
    pub fn input(&self) -> Vec<String> {
        let items: Vec<&RawValue> =
            serde_json::from_str(self.input_text()).expect("an array of items");
        items.iter().map(|item| item.get().to_owned()).collect()
    }

    /// The items of `input` as values.
    pub fn input_values(&self) -> Vec<Value> {
        let parse = |item: &String| serde_json::from_str(item).expect("an item");
        self.input().iter().map(parse).collect()
    }

    /// The exact text of `input`, with its brackets.
    pub fn input_text(&self) -> &str {
        #[derive(Deserialize)]
        struct Body<'a> {
            #[serde(borrow)]
            input: &'a RawValue,
        }
        let body: Body = serde_json::from_slice(&self.body).expect("a body with input");
        body.input.get()
    }

    /// The exact text of the body around `input`.
    pub fn around_input(&self) -> (String, String) {
        let text = std::str::from_utf8(&self.body).expect("a body in UTF-8");
        let input = self.input_text();
        let begin = input.as_ptr() as usize - text.as_ptr() as usize;
        let (head, tail) = (&text[..begin], &text[begin + input.len()..]);
        (head.to_owned(), tail.to_owned())
    }

    /// The results in `input`, in order: `call_id` and what its `output` says.
    pub fn results(&self) -> Vec<(String, Value)> {
        let mut results = Vec::new();
        for item in self.input_values() {
            if item["type"] == "function_call_output" {
                let call_id = item["call_id"].as_str().expect("a call_id").to_owned();
                let output = item["output"].as_str().expect("output that is a string");
                let output = serde_json::from_str(output).expect("output that is JSON");
                results.push((call_id, output));
            }
        }
        results
    }
}

/// One thing that an answer does.
pub enum Piece {
    /// Written at once; with [`Framing::Chunked`] one chunk.
    Bytes(Vec<u8>),
    /// Written byte by byte; with [`Framing::Chunked`] each one a chunk.
    EachByte(Vec<u8>),
    /// Waits until the test lets it go on; see [`hold`].
    Hold(Hold),
    /// Silence until the client closes the connection.
    AwaitClose,
    /// Ends the connection with RST, whatever the framing promised.
    Reset,
    /// Ends the connection with FIN, whatever the framing promised.
    Cut,
}

impl Piece {
    pub fn text(text: impl Into<String>) -> Piece {
        Piece::Bytes(text.into().into_bytes())
    }
}

/// The server's side of a pause.
pub struct Hold {
    reached: Sender<()>,
    release: Receiver<()>,
}

/// The test's side of a pause. Dropping it releases the server too.
pub struct Release {
    reached: Receiver<()>,
    release: Sender<()>,
}

impl Release {
    /// Waits until the server has written everything before the pause.
    pub fn wait_reached(&self) {
        self.reached
            .recv_timeout(PATIENCE)
            .expect("the server comes to the pause");
    }

    pub fn release(self) {
        // The connection may be gone.
        let _ = self.release.send(());
    }
}

/// A pause and the handle that ends it.
pub fn hold() -> (Piece, Release) {
    let (reached, was_reached) = mpsc::channel();
    let (release, released) = mpsc::channel();
    let piece = Piece::Hold(Hold {
        reached,
        release: released,
    });
    let handle = Release {
        reached: was_reached,
        release,
    };
    (piece, handle)
}

/// How the end of a body is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    Chunked,
    ContentLength,
    /// By the end of the connection.
    Close,
    /// No head is written at all: the pieces are the whole answer, then the connection is closed.
    Raw,
}

/// What the server does about one request.
pub struct Answer {
    pub status: String,
    pub headers: Vec<(String, String)>,
    pub framing: Framing,
    pub pieces: Vec<Piece>,
    /// The exact text of the items of its output, as they must come back in later requests.
    pub items: Vec<String>,
    /// The text that is shown for it.
    pub text: String,
}

impl Answer {
    /// An event stream made of these pieces.
    pub fn stream(pieces: Vec<Piece>) -> Answer {
        Answer {
            status: "200 OK".into(),
            headers: vec![(
                "Content-Type".into(),
                "text/event-stream; charset=utf-8".into(),
            )],
            framing: Framing::Chunked,
            pieces,
            items: Vec::new(),
            text: String::new(),
        }
    }

    /// Any answer with a body that is there at once, such as an error's.
    pub fn http(status: &str, content_type: &str, body: impl Into<Vec<u8>>) -> Answer {
        Answer {
            status: status.into(),
            headers: vec![("Content-Type".into(), content_type.into())],
            framing: Framing::ContentLength,
            ..Answer::stream(vec![Piece::Bytes(body.into())])
        }
    }

    /// Exactly these pieces: no status, no headers.
    pub fn raw(pieces: Vec<Piece>) -> Answer {
        Answer {
            framing: Framing::Raw,
            ..Answer::stream(pieces)
        }
    }

    /// Takes the request and says nothing.
    pub fn silence() -> Answer {
        Answer::raw(vec![Piece::AwaitClose])
    }

    pub fn header(mut self, name: &str, value: &str) -> Answer {
        self.headers.push((name.into(), value.into()));
        self
    }

    pub fn framed(mut self, framing: Framing) -> Answer {
        self.framing = framing;
        self
    }

    /// The same bytes, written one at a time.
    pub fn byte_by_byte(mut self) -> Answer {
        for piece in &mut self.pieces {
            if let Piece::Bytes(bytes) = piece {
                *piece = Piece::EachByte(std::mem::take(bytes));
            }
        }
        self
    }

    /// All bytes of the body, in one.
    pub fn body(&self) -> Vec<u8> {
        let mut body = Vec::new();
        for piece in &self.pieces {
            if let Piece::Bytes(bytes) | Piece::EachByte(bytes) = piece {
                body.extend_from_slice(bytes);
            }
        }
        body
    }
}

type Script = Box<dyn FnMut(&Request) -> Option<Answer> + Send>;

#[derive(Default)]
struct Seen {
    requests: Vec<Request>,
    unscripted: usize,
    closed: usize,
    ended: bool,
}

struct Shared {
    seen: Mutex<Seen>,
    change: Condvar,
    script: Mutex<Script>,
    queue: Arc<Mutex<VecDeque<Answer>>>,
}

/// The server. It listens until the value goes.
pub struct Endpoint {
    address: SocketAddr,
    shared: Arc<Shared>,
}

impl Endpoint {
    /// Gives these answers, in order.
    pub fn start(answers: impl IntoIterator<Item = Answer>) -> Endpoint {
        let queue = Arc::new(Mutex::new(VecDeque::from_iter(answers)));
        let source = queue.clone();
        let script = Box::new(move |_: &Request| source.lock().unwrap().pop_front());
        Endpoint::listen(script, queue)
    }

    /// Asks `script` for each answer; `None` refuses the request as unscripted.
    pub fn scripted(script: impl FnMut(&Request) -> Option<Answer> + Send + 'static) -> Endpoint {
        Endpoint::listen(Box::new(script), Arc::default())
    }

    fn listen(script: Script, queue: Arc<Mutex<VecDeque<Answer>>>) -> Endpoint {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a loopback port");
        let address = listener.local_addr().expect("an address");
        let shared = Arc::new(Shared {
            seen: Mutex::default(),
            change: Condvar::new(),
            script: Mutex::new(script),
            queue,
        });
        let served = shared.clone();
        thread::spawn(move || {
            for connection in listener.incoming() {
                if served.seen.lock().unwrap().ended {
                    return;
                }
                let (Ok(connection), served) = (connection, served.clone()) else {
                    continue;
                };
                // A client that goes away ends the connection's thread, and nothing else.
                thread::spawn(move || serve(&connection, &served));
            }
        });
        Endpoint { address, shared }
    }

    /// Adds an answer behind those not yet given.
    pub fn push(&self, answer: Answer) {
        self.shared.queue.lock().unwrap().push_back(answer);
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn base_url(&self) -> String {
        format!("http://{}/v1", self.address)
    }

    /// All requests so far.
    pub fn requests(&self) -> Vec<Request> {
        self.shared.seen.lock().unwrap().requests.clone()
    }

    /// Waits for the `number`th request (from 1).
    #[track_caller]
    pub fn wait_for_request(&self, number: usize) -> Request {
        let seen = self.wait(|seen| seen.requests.len() >= number);
        match seen.requests.get(number - 1) {
            Some(request) => request.clone(),
            None => panic!("request {number} did not come: {}", seen.requests.len()),
        }
    }

    /// Waits until the client has closed `count` connections that were in [`Piece::AwaitClose`].
    #[track_caller]
    pub fn wait_for_closed(&self, count: usize) {
        let closed = self.wait(|seen| seen.closed >= count).closed;
        assert!(closed >= count, "{closed} connections were closed");
    }

    fn wait(&self, is_enough: impl Fn(&Seen) -> bool) -> std::sync::MutexGuard<'_, Seen> {
        let seen = self.shared.seen.lock().unwrap();
        let waiting = |seen: &mut Seen| !is_enough(seen);
        let change = &self.shared.change;
        change
            .wait_timeout_while(seen, PATIENCE, waiting)
            .unwrap()
            .0
    }

    /// Fails unless every answer was asked for, and nothing besides.
    #[track_caller]
    pub fn assert_all_used(&self) {
        let left = self.shared.queue.lock().unwrap().len();
        assert_eq!(left, 0, "answers that nobody asked for");
        self.assert_nothing_unscripted();
    }

    #[track_caller]
    fn assert_nothing_unscripted(&self) {
        let seen = self.shared.seen.lock().unwrap();
        let bodies = || -> Vec<String> {
            let all = seen.requests.iter();
            all.map(|r| String::from_utf8_lossy(&r.body).into_owned())
                .collect()
        };
        assert!(
            seen.unscripted == 0,
            "{} requests were not in the script; all bodies:\n{}",
            seen.unscripted,
            bodies().join("\n")
        );
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.shared.seen.lock().unwrap().ended = true;
        // Wakes the listening thread. Where that fails the process ends soon anyway.
        let _ = TcpStream::connect(self.address);
        if !thread::panicking() {
            self.assert_nothing_unscripted();
        }
    }
}

/// Serves one connection until its end. Errors are the client's going away.
fn serve(connection: &TcpStream, shared: &Shared) -> io::Result<()> {
    connection.set_nodelay(true)?;
    let mut reader = BufReader::new(connection);
    while let Some(request) = read_request(&mut reader)? {
        let answer = shared.script.lock().unwrap()(&request);
        let mut seen = shared.seen.lock().unwrap();
        seen.requests.push(request);
        seen.unscripted += usize::from(answer.is_none());
        drop(seen);
        shared.change.notify_all();
        let answer = answer.unwrap_or_else(unscripted);
        let closes = matches!(answer.framing, Framing::Close | Framing::Raw);
        if !write_answer(connection, answer, shared)? || closes {
            break;
        }
    }
    Ok(())
}

fn unscripted() -> Answer {
    let body = r#"{"error":{"message":"a request that the script does not know","type":"invalid_request_error","param":null,"code":"unscripted"}}"#;
    Answer::http("400 Bad Request", "application/json", body)
}

/// Reads one request; `None` at the end of the connection.
fn read_request(reader: &mut BufReader<&TcpStream>) -> io::Result<Option<Request>> {
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let mut words = line.split_whitespace().map(str::to_owned);
    let (method, path) = (words.next(), words.next());
    let mut headers = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        match line.trim_end().split_once(':') {
            Some((name, value)) => headers.push((name.to_owned(), value.trim().to_owned())),
            None => break,
        }
    }
    let mut request = Request {
        method: method.unwrap_or_default(),
        path: path.unwrap_or_default(),
        headers,
        body: Vec::new(),
    };
    let length = request.header("content-length");
    let length: usize = length.and_then(|n| n.parse().ok()).unwrap_or_default();
    request.body.resize(length, 0);
    reader.read_exact(&mut request.body)?;
    Ok(Some(request))
}

/// Writes one answer; `false` where a piece has ended the connection.
fn write_answer(mut out: &TcpStream, answer: Answer, shared: &Shared) -> io::Result<bool> {
    let framing = answer.framing;
    if framing != Framing::Raw {
        out.write_all(head(&answer).as_bytes())?;
    }
    let is_chunked = framing == Framing::Chunked;
    for piece in answer.pieces {
        match piece {
            Piece::Bytes(bytes) => write_bytes(out, &bytes, is_chunked)?,
            Piece::EachByte(bytes) => {
                for byte in bytes {
                    write_bytes(out, &[byte], is_chunked)?;
                }
            }
            Piece::Hold(hold) => {
                // The test may have given up its handle: then it is released already.
                let _ = hold.reached.send(());
                let _ = hold.release.recv();
            }
            Piece::AwaitClose => {
                await_close(out);
                shared.seen.lock().unwrap().closed += 1;
                shared.change.notify_all();
                return Ok(false);
            }
            Piece::Reset => {
                rustix::net::sockopt::set_socket_linger(out, Some(Duration::ZERO))?;
                return Ok(false);
            }
            Piece::Cut => return Ok(false),
        }
    }
    if is_chunked {
        out.write_all(b"0\r\n\r\n")?;
    }
    Ok(true)
}

fn head(answer: &Answer) -> String {
    let mut head = format!("HTTP/1.1 {}\r\n", answer.status);
    for (name, value) in &answer.headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str(&match answer.framing {
        Framing::Chunked => "Transfer-Encoding: chunked\r\n\r\n".to_owned(),
        Framing::ContentLength => format!("Content-Length: {}\r\n\r\n", answer.body().len()),
        Framing::Close | Framing::Raw => "Connection: close\r\n\r\n".to_owned(),
    });
    head
}

fn write_bytes(mut out: &TcpStream, bytes: &[u8], is_chunked: bool) -> io::Result<()> {
    if !is_chunked {
        return out.write_all(bytes);
    }
    if bytes.is_empty() {
        // An empty chunk would be the last one.
        return Ok(());
    }
    let mut chunk = format!("{:x}\r\n", bytes.len()).into_bytes();
    chunk.extend_from_slice(bytes);
    chunk.extend_from_slice(b"\r\n");
    out.write_all(&chunk)
}

fn await_close(mut connection: &TcpStream) {
    let mut buffer = [0; 4096];
    // An error is an end as well.
    while let Ok(1..) = connection.read(&mut buffer) {}
}

// --- what a model says ------------------------------------------------------------------------

/// The output of one response, as the events of OpenAI's servers.
///
/// Items, events and the final response agree with each other; what is wanted otherwise is put in
/// with [`Reply::item`], [`Reply::event`] and [`Reply::piece`].
pub struct Reply {
    id: String,
    items: Vec<String>,
    text: String,
    pieces: Vec<Piece>,
    events: u32,
}

/// `text` as a JSON string.
pub fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

fn fresh_id(prefix: &str) -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!("{prefix}_{:08x}", COUNT.fetch_add(1, Ordering::Relaxed))
}

impl Default for Reply {
    fn default() -> Reply {
        Reply::new()
    }
}

impl Reply {
    pub fn new() -> Reply {
        let reply = Reply {
            id: fresh_id("resp"),
            items: Vec::new(),
            text: String::new(),
            pieces: Vec::new(),
            events: 0,
        };
        let response = reply.response("in_progress", "[]", "null", "null");
        reply
            .event("response.created", &format!(r#""response":{response}"#))
            .event("response.in_progress", &format!(r#""response":{response}"#))
    }

    /// One event: its type and the rest of its fields.
    pub fn event(mut self, kind: &str, fields: &str) -> Reply {
        let number = self.events;
        self.events += 1;
        self.piece(Piece::text(format!(
            "event: {kind}\ndata: {{\"type\":\"{kind}\",\"sequence_number\":{number},{fields}}}\n\n"
        )))
    }

    /// Anything else at this place of the stream.
    pub fn piece(mut self, piece: Piece) -> Reply {
        self.pieces.push(piece);
        self
    }

    /// A message of the assistant, word by word.
    pub fn message(self, text: &str) -> Reply {
        self.message_in_phase(text, None)
    }

    /// A message that says whether it is a `commentary` or the `final_answer`.
    pub fn message_in_phase(self, text: &str, phase: Option<&str>) -> Reply {
        let (id, index) = (fresh_id("msg"), self.items.len());
        let words: Vec<&str> = text.split_inclusive(' ').collect();
        let mut reply = self.message_begins(&id, phase);
        for word in words {
            reply = reply.delta_of(&id, index, word);
        }
        let part = text_part(text);
        reply.text.push_str(text);
        let place = format!(r#""item_id":"{id}","output_index":{index},"content_index":0"#);
        let text = quoted(text);
        reply
            .event(
                "response.output_text.done",
                &format!(r#"{place},"logprobs":[],"text":{text}"#),
            )
            .event(
                "response.content_part.done",
                &format!(r#"{place},"part":{part}"#),
            )
            .item_done(message_item(&id, "completed", &part, phase))
    }

    fn message_begins(self, id: &str, phase: Option<&str>) -> Reply {
        let index = self.items.len();
        let item = message_item(id, "in_progress", "", phase);
        let (place, part) = (format!(r#""item_id":"{id}""#), text_part(""));
        self.item_added(&item).event(
            "response.content_part.added",
            &format!(r#"{place},"output_index":{index},"content_index":0,"part":{part}"#),
        )
    }

    /// One fragment of text by itself, for streams that stop in the middle.
    pub fn delta(self, text: &str) -> Reply {
        let index = self.items.len();
        self.delta_of("msg_partial", index, text)
    }

    fn delta_of(self, id: &str, index: usize, text: &str) -> Reply {
        let text = quoted(text);
        self.event(
            "response.output_text.delta",
            &format!(
                r#""item_id":"{id}","output_index":{index},"content_index":0,"delta":{text},"logprobs":[],"obfuscation":"x9""#
            ),
        )
    }

    /// A reasoning item with encrypted content.
    pub fn reasoning(self, encrypted: &str) -> Reply {
        let (id, encrypted) = (fresh_id("rs"), quoted(encrypted));
        let item = |encrypted: &str| {
            format!(
                r#"{{"id":"{id}","type":"reasoning","encrypted_content":{encrypted},"summary":[]}}"#
            )
        };
        // What is there at first is incomplete and may not be kept.
        self.item_added(&item(r#""incomplete""#))
            .item_done(item(&encrypted))
    }

    /// A function call, its arguments in fragments.
    pub fn call(self, call_id: &str, name: &str, arguments: &str) -> Reply {
        let (id, index) = (fresh_id("fc"), self.items.len());
        let item = |status: &str, arguments: &str| {
            let (call_id, name) = (quoted(call_id), quoted(name));
            let arguments = quoted(arguments);
            format!(
                r#"{{"id":"{id}","type":"function_call","status":"{status}","arguments":{arguments},"call_id":{call_id},"name":{name}}}"#
            )
        };
        let place = format!(r#""item_id":"{id}","output_index":{index}"#);
        let mut reply = self.item_added(&item("in_progress", ""));
        for fragment in arguments.split_inclusive([' ', ':']) {
            reply = reply.event(
                "response.function_call_arguments.delta",
                &format!(r#"{place},"delta":{},"obfuscation":"q""#, quoted(fragment)),
            );
        }
        reply
            .event(
                "response.function_call_arguments.done",
                &format!(
                    r#"{place},"name":{},"arguments":{}"#,
                    quoted(name),
                    quoted(arguments)
                ),
            )
            .item_done(item("completed", arguments))
    }

    /// A call of `bash`.
    pub fn bash(self, call_id: &str, command: &str) -> Reply {
        self.call(call_id, "bash", &command_arguments(command))
    }

    /// Any finished item, with exactly this text.
    pub fn item(self, item: &str) -> Reply {
        self.item_done(item.to_owned())
    }

    fn item_added(self, item: &str) -> Reply {
        let index = self.items.len();
        self.event(
            "response.output_item.added",
            &format!(r#""output_index":{index},"item":{item}"#),
        )
    }

    fn item_done(mut self, item: String) -> Reply {
        let index = self.items.len();
        self.items.push(item.clone());
        self.event(
            "response.output_item.done",
            &format!(r#""output_index":{index},"item":{item}"#),
        )
    }

    fn response(&self, status: &str, output: &str, error: &str, incomplete: &str) -> String {
        let usage = match status {
            "completed" | "incomplete" => {
                r#"{"input_tokens":120,"input_tokens_details":{"cached_tokens":100},"output_tokens":20,"output_tokens_details":{"reasoning_tokens":5},"total_tokens":140}"#
            }
            _ => "null",
        };
        format!(
            r#"{{"id":"{}","object":"response","created_at":1760000000,"status":"{status}","error":{error},"incomplete_details":{incomplete},"model":"test-model","output":{output},"parallel_tool_calls":false,"store":false,"usage":{usage}}}"#,
            self.id
        )
    }

    fn output(&self) -> String {
        format!("[{}]", self.items.join(","))
    }

    /// Ends as most responses do.
    pub fn completed(self) -> Answer {
        let output = self.output();
        self.completed_with(&output)
    }

    /// Completed, with `output` (a JSON array) in the last event, whatever was streamed.
    pub fn completed_with(self, output: &str) -> Answer {
        let response = self.response("completed", output, "null", "null");
        self.event("response.completed", &format!(r#""response":{response}"#))
            .cut()
    }

    /// `response.failed` with an error.
    pub fn failed(self, code: &str, message: &str) -> Answer {
        let error = format!(
            r#"{{"code":{},"message":{}}}"#,
            quoted(code),
            quoted(message)
        );
        let response = self.response("failed", "[]", &error, "null");
        self.event("response.failed", &format!(r#""response":{response}"#))
            .cut()
    }

    /// `response.incomplete`, with what there is of the output.
    pub fn incomplete(self, reason: &str) -> Answer {
        let reason = format!(r#"{{"reason":{}}}"#, quoted(reason));
        let response = self.response("incomplete", &self.output(), "null", &reason);
        self.event("response.incomplete", &format!(r#""response":{response}"#))
            .cut()
    }

    /// Ends without a last event: an orderly end of the body, and no end of the response.
    pub fn cut(self) -> Answer {
        Answer {
            items: self.items,
            text: self.text,
            ..Answer::stream(self.pieces)
        }
    }
}

/// The arguments of a `bash` call.
pub fn command_arguments(command: &str) -> String {
    format!(r#"{{"command":{}}}"#, quoted(command))
}

fn text_part(text: &str) -> String {
    let text = quoted(text);
    format!(r#"{{"type":"output_text","annotations":[],"logprobs":[],"text":{text}}}"#)
}

fn message_item(id: &str, status: &str, content: &str, phase: Option<&str>) -> String {
    let phase = phase.map(|phase| format!(r#""phase":"{phase}","#));
    let phase = phase.unwrap_or_default();
    format!(
        r#"{{"id":"{id}","type":"message","status":"{status}","content":[{content}],{phase}"role":"assistant"}}"#
    )
}

/// A response of one message.
pub fn text(text: &str) -> Answer {
    Reply::new().message(text).completed()
}

/// A response of one `bash` call.
pub fn call(call_id: &str, command: &str) -> Answer {
    Reply::new().bash(call_id, command).completed()
}

/// A response of several calls: `call_id`, name, arguments.
pub fn calls(calls: &[(&str, &str, &str)]) -> Answer {
    let add = |reply: Reply, call: &(&str, &str, &str)| reply.call(call.0, call.1, call.2);
    calls.iter().fold(Reply::new(), add).completed()
}

/// An error event whose fields stand beside its type.
pub fn error_flat(code: &str, message: &str) -> Answer {
    let fields = format!(
        r#""code":{},"message":{},"param":null"#,
        quoted(code),
        quoted(message)
    );
    Reply::new().event("error", &fields).cut()
}

/// An error event that holds an object.
pub fn error_nested(code: &str, message: &str) -> Answer {
    let fields = format!(r#""error":{}"#, error_object(code, message));
    Reply::new().event("error", &fields).cut()
}

/// An HTTP error in OpenAI's form, with a request ID.
pub fn http_error(status: &str, code: &str, message: &str) -> Answer {
    let body = format!(r#"{{"error":{}}}"#, error_object(code, message));
    Answer::http(status, "application/json", body).header("x-request-id", "req_test_1")
}

fn error_object(code: &str, message: &str) -> String {
    format!(
        r#"{{"message":{},"type":"invalid_request_error","param":null,"code":{}}}"#,
        quoted(message),
        quoted(code)
    )
}
