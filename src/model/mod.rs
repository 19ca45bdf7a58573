//! The model client: a question's input in, one whole reply out, or one sentence on why not.
//!
//! Owns: what is asked again and when, what a server made Mino leave out for the rest of the run,
//! and every sentence about the model's side that a person reads. Promises: a [`Reply`] exists only
//! for a stream that reached its end and an output that makes sense as a whole; nothing is asked
//! again once an event came; the key is in no message; all outside text in a message is cleaned and
//! cut. Leans on `http` for the connection, [`sse`] for framing, [`wire`] for meaning. Gives up: a
//! failed reply is not repaired from its pieces, and what it cost stays spent.

mod http;
pub mod sse;
pub mod wire;

use std::fmt;
use std::io::{Cursor, Read};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::value::RawValue;

use crate::limits::{
    ERROR_BODY_BYTES, ERROR_TEXT_CHARS, EVENT_BYTES, EXCERPT_CHARS, READ_BYTES, RESPONSE_BYTES, RETRIES,
    RETRY_AFTER_MAX_MILLIS, RETRY_WAIT_MILLIS, STREAM_BYTES, TICK_MILLIS,
};
use crate::step::{Call, Definition, Input, Service, Usage};
use crate::sys::signal::Stop;
use crate::text::{one_line, quote};
use http::{Answer, Http};
use wire::{Fault, Optional, Output, ServerError};

/// What happens while a reply is awaited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress<'a> {
    /// A request goes out, and then about every `TICK_MILLIS` until the server answers.
    Waiting,
    /// Text as it arrives, all of one read at once. It is as the model wrote it: not for a terminal
    /// before it is cleaned.
    Text(&'a str),
    /// One line for a person: a retry, or something left out of this run's requests.
    Notice(&'a str),
}

/// The observer has nobody to tell any more; the request ends at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutputClosed;

/// One completed response. Only a stream that reached its end makes one.
#[derive(Debug)]
pub struct Reply {
    text: String,
    output: Output,
}

impl Reply {
    /// What was shown of it; empty where it only calls tools.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// All its items, as received, each on one line.
    pub fn items(&self) -> &[Box<RawValue>] {
        &self.output.items
    }

    /// Its function calls, in order, each with a `call_id` of its own.
    pub fn calls(&self) -> &[Call] {
        &self.output.calls
    }

    /// The tokens it cost, where the server says so.
    pub fn usage(&self) -> Option<Usage> {
        self.output.usage
    }
}

/// Why there is no reply. `Display` is one line for a person, which ends in what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelError {
    /// A signal came.
    Cancelled,
    /// See [`OutputClosed`].
    OutputClosed,
    /// The turn's requests are used up; none was sent.
    NoRequestLeft,
    /// The settings can't be used; which, and what to do.
    Settings(String),
    /// No connection. `tls`: it was there, but is not trusted or speaks no TLS.
    Unreachable {
        server: String,
        cause: String,
        tls: bool,
    },
    /// The server refused the request; `said` is in brackets, or empty.
    Status {
        status: u16,
        said: String,
        advice: String,
    },
    /// The conversation does not fit into the model. `status` where that was the answer's.
    TooLong {
        status: Option<u16>,
        said: String,
    },
    /// The provider's rules forbid it.
    Forbidden {
        status: Option<u16>,
        said: String,
    },
    Redirect {
        status: u16,
        to: String,
    },
    /// It succeeded, with something else than an event stream.
    NotAStream {
        status: u16,
        media_type: String,
        said: String,
    },
    Compressed {
        encoding: String,
    },
    /// The connection or the stream ended too early; `begun` after the first event.
    Cut {
        begun: bool,
    },
    Silent {
        seconds: u64,
    },
    /// The server stopped before the end of the answer.
    Incomplete {
        reason: String,
    },
    /// The server reported a failure within the stream.
    Failed {
        said: String,
        advice: String,
    },
    /// The stream came to its end and makes no sense; why.
    Invalid(String),
    /// More than is kept.
    TooLarge,
}

impl ModelError {
    /// What happened, and what to do about it.
    #[rustfmt::skip]
    fn parts(&self) -> (String, &str) {
        match self {
            ModelError::Cancelled => ("The request was cancelled".into(), ""),
            ModelError::OutputClosed => ("The output was closed".into(), ""),
            ModelError::NoRequestLeft => ("No model request is left in this turn".into(), "ask again"),
            ModelError::Settings(what) => (format!("Cannot prepare requests: {what}"), ""),
            ModelError::Unreachable { server, cause, tls } => (
                format!("Cannot connect to {server}: {cause}"),
                if *tls { "check base_url and the server's certificate" }
                else { "check base_url, the network and whether the server runs" },
            ),
            ModelError::Status { status, said, advice } =>
                (format!("The server answered {status}{said}"), advice),
            ModelError::TooLong { status, said } => (
                format!("{} that the conversation is too long for the model{said}", says(*status)),
                "start a new one with /new (mino ask --new)",
            ),
            ModelError::Forbidden { status, said } => (
                format!("{} that the provider's rules forbid the request{said}", says(*status)),
                "ask something else",
            ),
            ModelError::Redirect { status, to } => (
                format!("The server answered {status} and points to {to}, which is not followed"),
                "set base_url to the final address",
            ),
            ModelError::NotAStream { status, media_type, said } => (
                format!("The server answered {status} with {media_type} and no event stream{said}"),
                "check base_url, which usually ends in /v1",
            ),
            ModelError::Compressed { encoding } => (
                format!("The server sent a compressed answer ({encoding}), which can't be read"),
                "turn compression off there or in the proxy",
            ),
            ModelError::Cut { begun: false } =>
                ("The server closed the connection before it answered".into(), "ask again"),
            ModelError::Cut { begun: true } =>
                ("The answer was cut off before its end".into(), "ask again"),
            ModelError::Silent { seconds } => (
                format!("The server was silent for {seconds} s"),
                "ask again, or raise idle_timeout_seconds in config.json",
            ),
            ModelError::Incomplete { reason } => match reason.as_str() {
                "max_output_tokens" => (
                    "The answer is incomplete: it reached the output limit (max_output_tokens)".into(),
                    "ask for a shorter one",
                ),
                "content_filter" => (
                    "The answer is incomplete: a filter stopped it (content_filter)".into(),
                    "ask something else",
                ),
                "" => ("The answer is incomplete: the server stopped it".into(), "ask again"),
                other => (format!("The answer is incomplete: the server stopped it ({other})"), "ask again"),
            },
            ModelError::Failed { said, advice } =>
                (format!("The server failed while it answered{said}"), advice),
            ModelError::Invalid(why) =>
                (format!("The server's answer can't be used: {why}"), "ask again"),
            ModelError::TooLarge => (
                format!(
                    "The answer is larger than Mino takes ({} MiB of output, {} MiB an event, {} MiB in all)",
                    RESPONSE_BYTES >> 20, EVENT_BYTES >> 20, STREAM_BYTES >> 20,
                ),
                "ask for less",
            ),
        }
    }

    /// A second line for some of them.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            ModelError::Unreachable { tls: true, .. } => Some(
                "SSL_CERT_FILE can name a PEM bundle of the authorities to trust, in place of the built-in ones.",
            ),
            ModelError::Cut { begun: true } | ModelError::Incomplete { .. } => {
                Some("What was shown of it is not part of the conversation.")
            }
            _ => None,
        }
    }
}

impl fmt::Display for ModelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.parts() {
            (what, "") => write!(f, "{what}."),
            (what, advice) => write!(f, "{what}; {advice}."),
        }
    }
}

impl std::error::Error for ModelError {}

impl From<OutputClosed> for ModelError {
    fn from(OutputClosed: OutputClosed) -> ModelError {
        ModelError::OutputClosed
    }
}

/// A failed request, and whether another may follow.
struct Failure {
    error: ModelError,
    then: Then,
}

enum Then {
    Stop,
    /// The same again, after so many milliseconds where the server named them.
    Retry(Option<u64>),
    /// Once more without this, and without it from then on.
    Without(Optional),
}

impl From<ModelError> for Failure {
    fn from(error: ModelError) -> Failure {
        let then = match error {
            ModelError::Unreachable { tls: false, .. } | ModelError::Cut { begun: false } => {
                Then::Retry(None)
            }
            _ => Then::Stop,
        };
        Failure { error, then }
    }
}

impl From<OutputClosed> for Failure {
    fn from(closed: OutputClosed) -> Failure {
        ModelError::from(closed).into()
    }
}

/// Called with everything that happens until the reply is there.
pub type Observer<'a> = dyn FnMut(Progress<'_>) -> Result<(), OutputClosed> + 'a;

/// The client of one server and model. What a server refuses is left out for as long as it lives.
pub struct Client {
    service: Service,
    http: Http,
    stop: Stop,
    tools: Vec<Definition>,
    head: Arc<Vec<u8>>,
    tail: Arc<Vec<u8>>,
    omitted: Vec<Optional>,
}

impl Client {
    /// Checks the settings; nothing is sent. Fails with [`ModelError::Settings`] alone.
    pub fn new(
        service: Service,
        instructions: &str,
        tools: &[Definition],
        stop: Stop,
    ) -> Result<Client, ModelError> {
        Ok(Client {
            http: Http::new(&service, stop.clone())?,
            stop,
            head: Arc::new(wire::head(&service.model, instructions)),
            tail: Arc::new(wire::tail(tools, &[])),
            tools: tools.to_vec(),
            omitted: Vec::new(),
            service,
        })
    }

    /// Asks for one response to `input`. Each POST, also a repeated one, takes one from `budget`,
    /// and none is sent when it is used up.
    pub fn respond(
        &mut self,
        input: &Input,
        budget: &mut u32,
        observer: &mut Observer<'_>,
    ) -> Result<Reply, ModelError> {
        let mut retries = 0;
        loop {
            *budget = budget.checked_sub(1).ok_or(ModelError::NoRequestLeft)?;
            let failure = match self.attempt(input, observer) {
                Ok(reply) => return Ok(reply),
                Err(failure) => failure,
            };
            match failure.then {
                _ if self.stop.stopped() => return Err(ModelError::Cancelled),
                Then::Without(part) if !self.omitted.contains(&part) => {
                    self.omit(part);
                    observer(Progress::Notice(part.notice()))?;
                    if *budget == 0 {
                        return Err(failure.error);
                    }
                }
                Then::Retry(asked_millis) if retries < RETRIES && *budget > 0 => {
                    let millis = asked_millis.unwrap_or(RETRY_WAIT_MILLIS << retries);
                    retries += 1;
                    observer(Progress::Notice(&retry_notice(&failure.error, millis, retries)))?;
                    self.pause(millis)?;
                }
                _ => return Err(failure.error),
            }
        }
    }

    fn omit(&mut self, part: Optional) {
        self.omitted.push(part);
        self.tail = Arc::new(wire::tail(&self.tools, &self.omitted));
    }

    /// Sleeps in short pieces, so that a signal ends it at once.
    fn pause(&self, millis: u64) -> Result<(), ModelError> {
        let end = Instant::now() + Duration::from_millis(millis);
        while let Some(left) = end.checked_duration_since(Instant::now()) {
            if self.stop.stopped() {
                break;
            }
            thread::sleep(left.min(Duration::from_millis(TICK_MILLIS)));
        }
        match self.stop.stopped() {
            true => Err(ModelError::Cancelled),
            false => Ok(()),
        }
    }

    fn attempt(&self, input: &Input, observer: &mut Observer<'_>) -> Result<Reply, Failure> {
        observer(Progress::Waiting)?;
        let (body, length) = self.body(input);
        let waiting = &mut || observer(Progress::Waiting);
        let answer = self.http.post(body, length, waiting)?;
        match answer.status {
            200..=299 if !answer.encoding().is_empty() => {
                Err(ModelError::Compressed { encoding: self.tidy(&answer.encoding(), EXCERPT_CHARS) }.into())
            }
            200..=299 => self.read(answer, observer),
            300..=399 => Err(ModelError::Redirect {
                status: answer.status,
                to: quote(&self.tidy(&answer.location(), EXCERPT_CHARS)),
            }
            .into()),
            _ => Err(self.refusal(answer)),
        }
    }

    /// The body of a request, from shared pieces, and its length in bytes.
    fn body(&self, input: &Input) -> (impl Read + Send + use<>, u64) {
        let input = wire::reduced(input, &self.omitted).unwrap_or_else(|| input.clone());
        let comma = wire::comma(&input);
        let parts = [&self.head, &input.history, &input.turn, &self.tail];
        let length = parts.map(|part| part.len()).iter().sum::<usize>() + comma.len();
        let body = Cursor::new(Shared(self.head.clone()))
            .chain(Cursor::new(Shared(input.history)))
            .chain(comma)
            .chain(Cursor::new(Shared(input.turn)))
            .chain(Cursor::new(Shared(self.tail.clone())));
        (body, length as u64)
    }

    /// Reads the stream to its terminal event, and not further.
    fn read(&self, mut answer: Answer, observer: &mut Observer<'_>) -> Result<Reply, Failure> {
        let mut buffer = vec![0; READ_BYTES];
        let mut frames = sse::Frames::new();
        let mut response = wire::Response::default();
        let (mut total, mut shown) = (0, 0);
        loop {
            let read = answer.body.read(&mut buffer);
            if self.stop.stopped() {
                return Err(ModelError::Cancelled.into());
            }
            let read = read.map_err(|error| match self.http.broken(error) {
                ModelError::Cut { .. } => ModelError::Cut { begun: response.begun },
                other => other,
            })?;
            let bytes = buffer.get(..read).unwrap_or_default();
            if total == 0 && !is_event_stream(&answer, bytes) {
                return Err(self.not_a_stream(answer, bytes).into());
            }
            total += read as u64;
            let news = feed(&mut frames, &mut response, bytes);
            // Also before a failure is reported: what came with it was said.
            if let Some(text) = response.text.get(shown..).filter(|text| !text.is_empty()) {
                observer(Progress::Text(text))?;
                shown = response.text.len();
            }
            match news {
                Ok(Some(output)) => {
                    return Ok(Reply { text: response.text, output });
                }
                Ok(None) if total > STREAM_BYTES => return Err(ModelError::TooLarge.into()),
                Ok(None) if read > 0 => {}
                Ok(None) => return Err(self.fault(Fault::Cut, &answer, response.begun).into()),
                Err(fault) => return Err(self.fault(fault, &answer, response.begun).into()),
            }
        }
    }

    fn fault(&self, fault: Fault, answer: &Answer, begun: bool) -> ModelError {
        match fault {
            Fault::Cut => ModelError::Cut { begun },
            Fault::Incomplete(reason) => ModelError::Incomplete { reason: self.tidy(&reason, EXCERPT_CHARS) },
            Fault::Invalid(why) => ModelError::Invalid(self.tidy(&why, ERROR_TEXT_CHARS)),
            Fault::TooLarge => ModelError::TooLarge,
            Fault::Failed(error) => {
                let said = self.said(&error, answer, ERROR_TEXT_CHARS);
                special(&error, None, &said).unwrap_or_else(|| ModelError::Failed {
                    said,
                    advice: match error.is_quota() {
                        true => BILLING.into(),
                        false => "ask again".into(),
                    },
                })
            }
        }
    }

    /// An answer that is neither a success nor a redirect.
    fn refusal(&self, mut answer: Answer) -> Failure {
        let error = ServerError::read(&rest_of(&mut answer, &[]));
        let said = self.said(&error, &answer, ERROR_TEXT_CHARS);
        let status = answer.status;
        let refused = error.refuses().filter(|_| status == 400);
        let special = special(&error, Some(status), &said);
        let is_transient = matches!(status, 408 | 409 | 429 | 500..=599);
        let (then, advice) = match (refused, answer.retry_after_millis()) {
            (Some(part), _) => (Then::Without(part), self.advice(status)),
            _ if error.is_quota() => (Then::Stop, BILLING.into()),
            _ if special.is_some() || !is_transient => (Then::Stop, self.advice(status)),
            (None, Some(millis)) if millis > RETRY_AFTER_MAX_MILLIS => {
                let seconds = millis.div_ceil(1_000);
                let advice = format!("it asks to wait {seconds} s, so ask again then");
                (Then::Stop, advice)
            }
            (None, wait) => (Then::Retry(wait), "ask again later".into()),
        };
        let error = special.unwrap_or(ModelError::Status { status, said, advice });
        Failure { error, then }
    }

    /// What to do about a status that trying again does not change.
    fn advice(&self, status: u16) -> String {
        match status {
            401 if self.service.key.is_none() => {
                "set an API key (MINO_API_KEY, or \"api_key\" in config.json)".into()
            }
            401 => {
                let source = one_line(&self.service.key_source, ERROR_TEXT_CHARS);
                format!("check the API key, which came from {source}")
            }
            402 => BILLING.into(),
            403 => "check what the account and its API key may use".into(),
            404 => {
                let url = quote(&self.http.url());
                format!("check the model and base_url: the request went to {url}")
            }
            _ => "check base_url and model, or start a new conversation with /new (mino ask --new)".into(),
        }
    }

    fn not_a_stream(&self, mut answer: Answer, start: &[u8]) -> ModelError {
        let error = ServerError::read(&rest_of(&mut answer, start));
        let media_type = self.tidy(&answer.header("content-type"), EXCERPT_CHARS);
        ModelError::NotAStream {
            status: answer.status,
            media_type: match media_type.is_empty() {
                true => "no content type".into(),
                false => quote(&media_type),
            },
            said: self.said(&error, &answer, EXCERPT_CHARS),
        }
    }

    /// The server's code, message and request ID in brackets; nothing where it says none.
    fn said(&self, error: &ServerError, answer: &Answer, max_chars: usize) -> String {
        let code = self.tidy(&error.code, EXCERPT_CHARS);
        let message = self.tidy(&error.message, max_chars);
        let request = self.tidy(&answer.header("x-request-id"), EXCERPT_CHARS);
        let message = message.trim_end_matches('.');
        let mut said: Vec<&str> = [code.as_str(), message].into();
        said.retain(|part| !part.is_empty());
        let mut said = said.join(": ");
        if !request.is_empty() {
            let separator = if said.is_empty() { "" } else { "; " };
            said = format!("{said}{separator}request {request}");
        }
        match said.is_empty() {
            true => said,
            false => format!(" ({said})"),
        }
    }

    /// Outside text for a message: clean, on one line, cut, and without the key, which some servers
    /// repeat. It is looked for last, since cleaning could put it together.
    fn tidy(&self, text: &str, max_chars: usize) -> String {
        let mut text = one_line(text, usize::MAX);
        if let Some(key) = self.service.key.as_ref().map(|key| key.reveal())
            && !key.is_empty()
        {
            text = text.replace(key, "(key)");
        }
        one_line(&text, max_chars)
    }
}

const BILLING: &str = "check the plan and the billing of the account";

/// Shared bytes as something that can be read.
struct Shared(Arc<Vec<u8>>);

impl AsRef<[u8]> for Shared {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// Hands what one read brought to the event parser; nothing more comes after no bytes.
fn feed(
    frames: &mut sse::Frames,
    response: &mut wire::Response,
    mut bytes: &[u8],
) -> Result<Option<Output>, Fault> {
    if bytes.is_empty() {
        return match frames.finish() {
            Some(event) => response.last_event(event),
            None => Ok(None),
        };
    }
    while let Some(event) = frames.next(&mut bytes).map_err(|_| Fault::TooLarge)? {
        if let Some(output) = response.event(event)? {
            return Ok(Some(output));
        }
    }
    Ok(None)
}

/// Whether a body that begins with `start` is worth reading as events. Servers send streams under
/// many types and none, but never as JSON or a page, and no stream begins like those.
fn is_event_stream(answer: &Answer, start: &[u8]) -> bool {
    let media_type = answer.header("content-type").to_ascii_lowercase();
    let media_type = media_type.split(';').next().unwrap_or_default().trim();
    let first = start.trim_ascii_start().first();
    !matches!(media_type, "application/json" | "text/html") && !matches!(first, Some(b'{' | b'<'))
}

/// The start of a body that is no stream; where it breaks off, what came is all there is.
fn rest_of(answer: &mut Answer, start: &[u8]) -> Vec<u8> {
    if !answer.encoding().is_empty() {
        return Vec::new();
    }
    let mut body = start.to_vec();
    let room = ERROR_BODY_BYTES.saturating_sub(body.len() as u64);
    // A failure to read the rest of an error is not worth another error.
    let _ = (&mut answer.body).take(room).read_to_end(&mut body);
    body
}

/// Failures that have their own words, wherever they are reported.
fn special(error: &ServerError, status: Option<u16>, said: &str) -> Option<ModelError> {
    let said = said.to_owned();
    if error.is_too_long() {
        return Some(ModelError::TooLong { status, said });
    }
    let forbidden = ModelError::Forbidden { status, said };
    error.is_policy().then_some(forbidden)
}

fn says(status: Option<u16>) -> String {
    match status {
        Some(status) => format!("The server says ({status})"),
        None => "The server says".into(),
    }
}

fn retry_notice(error: &ModelError, millis: u64, retries: u32) -> String {
    let (what, _) = error.parts();
    let tenths = millis.div_ceil(100);
    let seconds = match (tenths / 10, tenths % 10) {
        (whole, 0) => format!("{whole}"),
        (whole, tenth) => format!("{whole}.{tenth}"),
    };
    let (next, all) = (retries + 1, RETRIES + 1);
    format!("{what}; trying again in {seconds} s ({next} of {all}).")
}
