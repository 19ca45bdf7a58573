//! The service's JSON, both ways, and the only place where its names are written.
//!
//! Owns: how a request is spelled, what an event means, what makes an output whole, and where an
//! error hides its message. Promises: an item is kept and sent back byte for byte, but for what
//! `replay` names; nothing of a stream counts before its terminal event; an event of a known type
//! that can't be read is a fault, never skipped. Leans on the streaming events and items of
//! OpenAI's Responses API as its reference publishes them, and on what servers that imitate it are
//! known to leave out. Gives up: what an unknown event or item means (both pass), and fields that
//! no decision needs.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use serde::de::{Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserializer as _, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::sse;
use crate::limits::{CALL_ID_BYTES, ERROR_BODY_BYTES, RESPONSE_BYTES, RESPONSE_ITEMS};
use crate::step::{Call, Definition, Input, Spelling, ToolResult, Usage};
use crate::text::quote;

// --- reading JSON without copying it ----------------------------------------------------------

type Raw<'a> = Option<&'a RawValue>;

/// What is called with each key (as written; none in an array) and value, until it says stop.
type Each<'f, 'a> = &'f mut dyn FnMut(Raw<'a>, &'a RawValue) -> bool;

/// Walks over an object or an array. No type is derived for what comes from outside: a derived one
/// would also take an array for an object, and stumble over a name that an unknown kind of item
/// uses in its own way.
struct Walk<'f, 'a>(Each<'f, 'a>);

impl<'a> Visitor<'a> for Walk<'_, 'a> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object or an array")
    }

    fn visit_map<A: MapAccess<'a>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some((key, value)) = map.next_entry()? {
            if !(self.0)(Some(key), value) {
                return Err(A::Error::custom("stopped"));
            }
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'a>>(self, mut seq: A) -> Result<(), A::Error> {
        while let Some(value) = seq.next_element()? {
            if !(self.0)(None, value) {
                return Err(A::Error::custom("stopped"));
            }
        }
        Ok(())
    }
}

/// Walks over all of the object that `json` is; `None` if it is none, or `each` stopped.
fn walk<'a>(json: &'a str, each: Each<'_, 'a>) -> Option<()> {
    let mut json = serde_json::Deserializer::from_str(json);
    json.deserialize_map(Walk(each)).ok()?;
    json.end().ok()
}

/// Looks up fields of the object that `json` is, null counting as absent; `None` if it is no object
/// or names one of them twice.
fn fields<'a, const N: usize>(json: &'a str, names: [&str; N]) -> Option<[Raw<'a>; N]> {
    let mut found = [None; N];
    walk(json, &mut |key, value| {
        let key = string(key).unwrap_or_default();
        let mut places = names.iter().zip(&mut found);
        match places.find(|(name, _)| **name == key) {
            Some((_, place)) => place.replace(value).is_none(),
            None => true,
        }
    })?;
    Some(found.map(|value| value.filter(|raw| raw.get() != "null")))
}

/// The elements of the array that `raw` is, none where it is absent. Too many are refused, since a
/// long array of tiny values costs many times its size.
fn list(raw: Raw<'_>) -> Result<Vec<&RawValue>, String> {
    let mut found = Vec::new();
    let json = raw.map_or("[]", RawValue::get);
    let walked = serde_json::Deserializer::from_str(json).deserialize_seq(Walk(&mut |_, value| {
        found.push(value);
        found.len() <= RESPONSE_ITEMS
    }));
    match walked {
        Ok(()) => Ok(found),
        Err(_) => Err(format!("has no list of at most {RESPONSE_ITEMS} values")),
    }
}

/// The string that `raw` is, if it is there and is one.
fn string(raw: Raw<'_>) -> Option<Cow<'_, str>> {
    let json = raw?.get();
    let text = json.strip_prefix('"')?.strip_suffix('"')?;
    match text.as_bytes().contains(&b'\\') {
        true => serde_json::from_str(json).ok().map(Cow::Owned),
        // It has been read as JSON before, so without an escape it is what it says.
        false => Some(Cow::Borrowed(text)),
    }
}

/// Replaces each `\u` escape of half a character by that of U+FFFD, in place; whether there was one.
/// Such an escape is legal JSON and no text, so no parser would return the string around it.
fn mend(json: &mut [u8]) -> bool {
    // Most events have none, and this looks at many bytes at once.
    if !json.contains(&b'\\') {
        return false;
    }
    let mut mended = false;
    let mut rest = json;
    while let Some(at) = rest.iter().position(|&byte| byte == b'\\') {
        let (_, escape) = rest.split_at_mut(at);
        let length = match (code_unit(escape), escape.get(6..).and_then(code_unit)) {
            (Some(0xd800..=0xdbff), Some(0xdc00..=0xdfff)) => 12,
            (Some(0xd800..=0xdfff), _) => {
                if let Some(digits) = escape.get_mut(2..6) {
                    digits.copy_from_slice(b"fffd");
                    mended = true;
                }
                6
            }
            _ => 2,
        };
        rest = escape.get_mut(length..).unwrap_or_default();
    }
    mended
}

/// The number in the `\uXXXX` that `escape` begins with.
fn code_unit(escape: &[u8]) -> Option<u16> {
    let digits = escape.strip_prefix(b"\\u")?.get(..4)?;
    let digits = std::str::from_utf8(digits).ok()?;
    digits.bytes().all(|byte| byte.is_ascii_hexdigit()).then_some(())?;
    u16::from_str_radix(digits, 16).ok()
}

/// `raw` on one line. A line break can't stand inside a JSON string, so only blanks change.
fn one_line(raw: &RawValue) -> Box<RawValue> {
    if !raw.get().contains(['\r', '\n']) {
        return raw.to_owned();
    }
    let line = raw.get().replace(['\r', '\n'], " ");
    // It was JSON with line breaks, so it is JSON with blanks.
    RawValue::from_string(line).unwrap_or_else(|_| raw.to_owned())
}

// --- items ------------------------------------------------------------------------------------

/// Precedes a refusal, on the screen and in the kept text.
const REFUSED: &str = "Model refused: ";

/// Items whose type ends in `_call` and that the server answers itself.
const HOSTED: [&str; 5] =
    ["web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call", "mcp_call"];

/// The type of an item, without a look at what follows it.
fn kind(item: &RawValue) -> Cow<'_, str> {
    let mut found = None;
    // That it is stopped is what this is for.
    let _ = walk(item.get(), &mut |key, value| {
        let is_type = string(key).is_some_and(|key| key == "type");
        found = is_type.then_some(value);
        !is_type
    });
    string(found).unwrap_or_default()
}

/// What a whole output asks for and says.
#[derive(Default)]
struct Checked {
    text: String,
    calls: Vec<Call>,
}

/// Looks at a whole output: all of it makes sense, or none of it counts.
fn check(items: &[&RawValue]) -> Result<Checked, String> {
    let mut checked = Checked::default();
    // A journal holds what some file says; a stream keeps to the limit before it comes here.
    if items.len() > RESPONSE_ITEMS {
        return Err(format!("it holds more than {RESPONSE_ITEMS} items"));
    }
    for (number, raw) in (1..).zip(items) {
        checked.item(raw).map_err(|why| format!("item {number} {why}"))?;
    }
    if checked.text.is_empty() && checked.calls.is_empty() {
        return Err("it holds neither text nor a tool call".into());
    }
    Ok(checked)
}

impl Checked {
    fn item(&mut self, raw: &RawValue) -> Result<(), String> {
        // These two look for a second type themselves.
        match &*kind(raw) {
            "message" => return self.message(raw),
            "function_call" => return self.call(raw),
            _ => {}
        }
        let [kind] = fields(raw.get(), ["type"]).ok_or("is not an item")?;
        match string(kind).as_deref() {
            Some(kind)
                if kind == "mcp_approval_request" || kind.ends_with("_call") && !HOSTED.contains(&kind) =>
            {
                Err(format!("is a {}, which Mino can't answer", quote(kind)))
            }
            Some(_) => Ok(()),
            None => Err("has no type".into()),
        }
    }

    fn message(&mut self, raw: &RawValue) -> Result<(), String> {
        let names = ["type", "status", "role", "content"];
        let [_, status, role, content] = fields(raw.get(), names).ok_or("has a field twice")?;
        finished(status)?;
        if string(role).as_deref() != Some("assistant") {
            return Err("is a message that is not the assistant's".into());
        }
        let said = match string(content) {
            Some(text) => text,
            None => said(&list(content)?)?.into(),
        };
        if !said.is_empty() {
            begin_line(&mut self.text);
            add(&mut self.text, said);
        }
        Ok(())
    }

    fn call(&mut self, raw: &RawValue) -> Result<(), String> {
        let names = ["type", "status", "call_id", "name", "arguments"];
        let [_, status, call_id, name, arguments] = fields(raw.get(), names).ok_or("has a field twice")?;
        finished(status)?;
        let call_id = string(call_id).unwrap_or_default();
        let name = string(name).unwrap_or_default();
        let arguments = string(arguments).ok_or("is a tool call without arguments")?;
        if call_id.is_empty() || call_id.len() > CALL_ID_BYTES {
            return Err(format!("is a tool call without a call_id of 1 to {CALL_ID_BYTES} bytes"));
        }
        if name.is_empty() {
            return Err("is a tool call without a name".into());
        }
        if self.calls.iter().any(|call| call.call_id == call_id) {
            return Err("has the call_id of another tool call".into());
        }
        self.calls.push(Call {
            call_id: call_id.into_owned(),
            name: name.into_owned(),
            arguments: arguments.into_owned(),
            altered: false,
        });
        Ok(())
    }
}

/// The text in a message's content.
fn said(content: &[&RawValue]) -> Result<String, String> {
    let mut said = String::new();
    for part in content {
        let [kind, text, refusal] =
            fields(part.get(), ["type", "text", "refusal"]).ok_or("has unreadable content")?;
        match string(kind).as_deref() {
            Some("output_text") => {
                add(&mut said, string(text).ok_or("has a text that is none")?);
            }
            Some("refusal") => {
                said.push_str(REFUSED);
                add(&mut said, string(refusal).ok_or("has a refusal that is none")?);
            }
            _ => {}
        }
    }
    Ok(said)
}

/// Appends without a copy where it is the first, as it mostly is.
fn add(text: &mut String, more: Cow<'_, str>) {
    match text.is_empty() {
        true => *text = more.into_owned(),
        false => text.push_str(&more),
    }
}

/// Many servers leave the status out; where it is there, it must say that the item is whole.
fn finished(status: Raw<'_>) -> Result<(), String> {
    match (status, string(status).as_deref()) {
        (None, _) | (_, Some("completed")) => Ok(()),
        _ => Err("has a status that is not \"completed\"".into()),
    }
}

fn begin_line(text: &mut String) {
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
}

// --- requests ---------------------------------------------------------------------------------

/// What a request can do without, once a server has refused it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Optional {
    /// The reasoning items, and the `id` of each item that follows one.
    Reasoning,
    Include,
    ParallelToolCalls,
    /// The `phase` of assistant messages.
    Phase,
}

impl Optional {
    /// What a person is told when it is left out.
    pub fn notice(self) -> &'static str {
        match self {
            Optional::Reasoning => {
                "The server can't read the conversation's reasoning items; going on without them."
            }
            Optional::Include => "The server does not know \"include\"; going on without it.",
            Optional::ParallelToolCalls => {
                "The server does not know \"parallel_tool_calls\"; going on without it."
            }
            Optional::Phase => "The server does not know the \"phase\" of messages; going on without it.",
        }
    }
}

/// What precedes the input in a request's body, and so can't change during a conversation.
pub fn head(model: &str, instructions: &str) -> Vec<u8> {
    let mut head = json!({ "model": model, "instructions": instructions }).to_string();
    head.pop();
    head.push_str(",\"input\":[");
    head.into_bytes()
}

/// What follows the input.
pub fn tail(tools: &[Definition], omitted: &[Optional]) -> Vec<u8> {
    let tools = tools.iter().map(|tool| {
        let parameters: Value = serde_json::from_str(tool.parameters).unwrap_or_default();
        json!({
            "type": "function",
            "name": tool.name,
            "description": tool.description,
            "parameters": parameters,
            "strict": true,
        })
    });
    let tools = Value::Array(tools.collect());
    let mut tail = format!("],\"tools\":{tools},\"store\":false,\"stream\":true");
    if !omitted.contains(&Optional::Include) {
        tail.push_str(",\"include\":[\"reasoning.encrypted_content\"]");
    }
    if !omitted.contains(&Optional::ParallelToolCalls) {
        tail.push_str(",\"parallel_tool_calls\":false");
    }
    tail.push('}');
    tail.into_bytes()
}

/// What stands between the two parts of an input.
pub fn comma(input: &Input) -> &'static [u8] {
    match input.history.is_empty() || input.turn.is_empty() {
        true => b"",
        false => b",",
    }
}

/// The input without what a server refused; `None` where all of it is sent as it stands.
pub fn reduced(input: &Input, omitted: &[Optional]) -> Option<Input> {
    if !omitted.contains(&Optional::Reasoning) && !omitted.contains(&Optional::Phase) {
        return None;
    }
    let json = [b"[", &**input.history, comma(input), &**input.turn, b"]"].concat();
    let items: Vec<&RawValue> = serde_json::from_slice(&json).ok()?;
    let mut history = Vec::with_capacity(json.len());
    replay(&items, omitted, &mut history);
    Some(Input { history: Arc::new(history), turn: Arc::default() })
}

/// How facts are spelled for this service.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wire;

impl Spelling for Wire {
    fn question(&self, text: &str, input: &mut Vec<u8>) {
        let content = json!([{ "type": "input_text", "text": text }]);
        let item = json!({ "type": "message", "role": "user", "content": content });
        append(item.to_string().as_bytes(), input);
    }

    fn answer(&self, text: &str, input: &mut Vec<u8>) {
        append(answer(text).as_bytes(), input);
    }

    fn output(&self, items: &[&RawValue], input: &mut Vec<u8>) {
        replay(items, &[], input);
    }

    fn result(&self, call_id: &str, result: &ToolResult, input: &mut Vec<u8>) {
        #[derive(Serialize)]
        struct Item<'a> {
            call_id: &'a str,
            output: String,
            r#type: &'a str,
        }
        // Strings and numbers always serialise.
        let item = Item {
            call_id,
            output: serde_json::to_string(result).unwrap_or_default(),
            r#type: "function_call_output",
        };
        begin_item(input);
        serde_json::to_writer(input, &item).unwrap_or_default();
    }

    fn calls(&self, items: &[&RawValue]) -> Result<Vec<Call>, String> {
        Ok(check(items)?.calls)
    }
}

/// An assistant's message of which only the text is known.
fn answer(text: &str) -> String {
    let content = json!([{ "type": "output_text", "text": text, "annotations": [] }]);
    json!({ "type": "message", "role": "assistant", "content": content }).to_string()
}

fn append(item: &[u8], input: &mut Vec<u8>) {
    begin_item(input);
    input.extend_from_slice(item);
}

fn begin_item(input: &mut Vec<u8>) {
    if !input.is_empty() {
        input.push(b',');
    }
}

/// Appends items as servers take them back: verbatim, but for what would make every later request
/// of the conversation fail on some server. Always left out is a reasoning item without anything in
/// it, and arguments that are no JSON go as `{}`; `omitted` says what else the server refused.
fn replay(items: &[&RawValue], omitted: &[Optional], input: &mut Vec<u8>) {
    let mut orphan = false;
    for raw in items {
        let kind = kind(raw);
        if kind == "reasoning" && (omitted.contains(&Optional::Reasoning) || is_hollow(raw)) {
            orphan = true;
            continue;
        }
        let mut unwanted = Vec::new();
        if std::mem::take(&mut orphan) {
            unwanted.push("id");
        }
        if omitted.contains(&Optional::Phase) && kind == "message" {
            unwanted.push("phase");
        }
        let empty_arguments = kind == "function_call" && !has_arguments(raw);
        let changed = match unwanted.is_empty() && !empty_arguments {
            true => None,
            false => changed(raw.get(), &unwanted, empty_arguments),
        };
        append(changed.as_deref().unwrap_or(raw.get().as_bytes()), input);
    }
}

/// A reasoning item that neither the server that wrote it nor another can read again.
fn is_hollow(item: &RawValue) -> bool {
    let names = ["content", "encrypted_content"];
    let [content, encrypted] = fields(item.get(), names).unwrap_or_default();
    let encrypted = string(encrypted).unwrap_or_default();
    encrypted.is_empty() && list(content).is_ok_and(|content| content.is_empty())
}

/// Whether a call's arguments are JSON to a strict reader: also one that refuses half characters.
fn has_arguments(call: &RawValue) -> bool {
    let [arguments] = fields(call.get(), ["arguments"]).unwrap_or_default();
    string(arguments).is_some_and(|text| serde_json::from_str::<Value>(&text).is_ok())
}

/// The item without its `unwanted` fields; `None` if it has none and nothing else is to change. What
/// is not named keeps its bytes and its place.
fn changed(item: &str, unwanted: &[&str], empty_arguments: bool) -> Option<Vec<u8>> {
    let mut changes = 0;
    let mut out = b"{".to_vec();
    walk(item, &mut |key, value| {
        let name = string(key).unwrap_or_default();
        let replaced = empty_arguments && name == "arguments";
        let removed = unwanted.contains(&&*name);
        changes += usize::from(replaced || removed);
        if !removed {
            out.extend_from_slice(if out.len() > 1 { b"," } else { b"" });
            out.extend_from_slice(key.map_or("", RawValue::get).as_bytes());
            out.push(b':');
            let value = if replaced { "\"{}\"" } else { value.get() };
            out.extend_from_slice(value.as_bytes());
        }
        true
    })?;
    out.push(b'}');
    (changes > 0).then_some(out)
}

// --- the stream -------------------------------------------------------------------------------

/// The `response` of a terminal event.
#[derive(Default)]
struct End<'a> {
    status: Raw<'a>,
    output: Raw<'a>,
    usage: Raw<'a>,
    error: Raw<'a>,
    details: Raw<'a>,
}

impl<'a> End<'a> {
    fn read(response: Raw<'a>) -> Option<End<'a>> {
        let names = ["status", "output", "usage", "error", "incomplete_details"];
        let [status, output, usage, error, details] = fields(response?.get(), names)?;
        Some(End { status, output, usage, error, details })
    }
}

/// The types that mean something here. All others pass.
const KNOWN: [&str; 7] = [
    "response.output_text.delta",
    "response.refusal.delta",
    "response.output_item.done",
    "response.completed",
    "response.incomplete",
    "response.failed",
    "error",
];

/// Why a stream gives no output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It ended, or said that it ended, before its terminal event.
    Cut,
    /// The server stopped early; its reason, which may be empty.
    Incomplete(String),
    Failed(ServerError),
    /// What came can't be used; why, as the end of a sentence.
    Invalid(String),
    /// More was sent than is kept.
    TooLarge,
}

/// A completed output that makes sense as a whole.
#[derive(Debug)]
pub struct Output {
    pub items: Vec<Box<RawValue>>,
    pub calls: Vec<Call>,
    pub usage: Option<Usage>,
}

/// One response while it arrives.
#[derive(Debug, Default)]
pub struct Response {
    /// All text so far, as it is to be shown and kept. With the output it may grow by what was never
    /// streamed.
    pub text: String,
    /// An event came: what is cut from now on isn't asked for again.
    pub begun: bool,
    items: Vec<Box<RawValue>>,
    item_bytes: usize,
    /// One of `items` is not as it was sent.
    mended: bool,
    refused: bool,
    /// Which item the last text belongs to.
    index: String,
}

impl Response {
    /// Takes one event; the output, once it is the terminal one of a completed response.
    pub fn event(&mut self, event: sse::Event<'_>) -> Result<Option<Output>, Fault> {
        let mut mended = mend(event.data);
        let data = match std::str::from_utf8(event.data) {
            Ok(data) => Cow::Borrowed(data),
            Err(_) => String::from_utf8_lossy(event.data),
        };
        mended |= matches!(data, Cow::Owned(_));
        let data = data.trim_ascii();
        let name = std::str::from_utf8(event.name).unwrap_or_default();
        if data.is_empty() {
            return Ok(None);
        }
        if data.starts_with("[DONE]") {
            return Err(Fault::Cut);
        }
        self.begun = true;
        let names = ["type", "delta", "output_index", "item", "response", "error"];
        let Some([kind, delta, index, item, response, error]) = fields(data, names) else {
            // A heartbeat may be a number or a word. What looks like an event must be one.
            return match data.starts_with('{') || KNOWN.contains(&name) {
                true => Err(Fault::Invalid("it holds an event that is no JSON".into())),
                false => Ok(None),
            };
        };
        let kind = string(kind);
        let is_untyped_error = kind.is_none() && error.is_some();
        match kind.as_deref().unwrap_or(name) {
            "response.output_text.delta" => self.delta(delta, index, false)?,
            "response.refusal.delta" => self.delta(delta, index, true)?,
            "response.output_item.done" => self.item(item, mended)?,
            "response.completed" => {
                let end = End::read(response).ok_or_else(|| without("response"))?;
                return self.completed(&end, mended).map(Some);
            }
            "response.incomplete" => {
                return Err(incomplete(&End::read(response).unwrap_or_default()));
            }
            "response.failed" => return Err(failed(&End::read(response).unwrap_or_default())),
            kind if kind == "error" || is_untyped_error => {
                return Err(Fault::Failed(ServerError::read(data.as_bytes())));
            }
            _ => {}
        }
        Ok(None)
    }

    /// Takes what the stream ended on without the blank line behind it: an event if it is whole.
    pub fn last_event(&mut self, event: sse::Event<'_>) -> Result<Option<Output>, Fault> {
        match serde_json::from_slice::<IgnoredAny>(event.data) {
            Ok(_) => self.event(event),
            Err(_) => Ok(None),
        }
    }

    fn delta(&mut self, delta: Raw<'_>, index: Raw<'_>, refusal: bool) -> Result<(), Fault> {
        let delta = string(delta).ok_or_else(|| without("delta"))?;
        if delta.is_empty() {
            return Ok(());
        }
        if let Some(index) = index.filter(|raw| raw.get() != self.index) {
            self.index = index.get().to_owned();
            begin_line(&mut self.text);
        }
        if refusal && !std::mem::replace(&mut self.refused, true) {
            begin_line(&mut self.text);
            self.text.push_str(REFUSED);
        }
        if self.text.len() + delta.len() > RESPONSE_BYTES {
            return Err(Fault::TooLarge);
        }
        self.text.push_str(&delta);
        Ok(())
    }

    fn item(&mut self, item: Raw<'_>, mended: bool) -> Result<(), Fault> {
        let item = item.ok_or_else(|| without("item"))?;
        self.item_bytes += item.get().len();
        if self.item_bytes > RESPONSE_BYTES || self.items.len() == RESPONSE_ITEMS {
            return Err(Fault::TooLarge);
        }
        self.mended |= mended;
        self.items.push(one_line(item));
        Ok(())
    }

    fn completed(&mut self, end: &End, mended: bool) -> Result<Output, Fault> {
        match string(end.status).as_deref() {
            Some("completed") => {}
            Some("incomplete") => return Err(incomplete(end)),
            Some("failed" | "cancelled") => return Err(failed(end)),
            Some(other) => {
                return Err(Fault::Invalid(format!("its status is {}", quote(other))));
            }
            None => return Err(Fault::Invalid("it says no status".into())),
        }
        let listed = self.listed(end)?;
        let mended = match listed.is_empty() {
            true => self.mended,
            false => mended,
        };
        let finished = self.finished_items(!listed.is_empty());
        let views: Vec<&RawValue> = finished.iter().map(AsRef::as_ref).chain(listed).collect();
        // Before the items are copied, since both take memory.
        let mut checked = check(&views).map_err(Fault::Invalid)?;
        for call in &mut checked.calls {
            call.altered = mended && call.arguments.contains(char::REPLACEMENT_CHARACTER);
        }
        if self.text.is_empty() {
            self.text = checked.text;
        }
        Ok(Output {
            items: match finished.is_empty() {
                true => views.into_iter().map(one_line).collect(),
                false => finished,
            },
            calls: checked.calls,
            usage: usage(end.usage),
        })
    }

    /// The terminal event's items.
    fn listed<'a>(&self, end: &End<'a>) -> Result<Vec<&'a RawValue>, Fault> {
        let listed = list(end.output).map_err(|why| Fault::Invalid(format!("its output {why}")))?;
        let bytes: usize = listed.iter().map(|raw| raw.get().len()).sum();
        match bytes > RESPONSE_BYTES {
            true => Err(Fault::TooLarge),
            false => Ok(listed),
        }
    }

    /// What stands for the output where the terminal event has none: the finished items, or where
    /// there are none, the text that was streamed.
    fn finished_items(&mut self, are_listed: bool) -> Vec<Box<RawValue>> {
        let mut items = std::mem::take(&mut self.items);
        if are_listed {
            items.clear();
        } else if items.is_empty() && !self.text.is_empty() {
            items.extend(RawValue::from_string(answer(&self.text)).ok());
        }
        items
    }
}

fn without(field: &str) -> Fault {
    Fault::Invalid(format!("it holds an event without its {field}"))
}

fn incomplete(end: &End) -> Fault {
    let reason = end
        .details
        .and_then(|raw| fields(raw.get(), ["reason"]))
        .and_then(|[reason]| string(reason))
        .unwrap_or_default();
    Fault::Incomplete(reason.into_owned())
}

fn failed(end: &End) -> Fault {
    Fault::Failed(match end.error {
        Some(error) => ServerError::read(error.get().as_bytes()),
        None => ServerError::default(),
    })
}

fn usage(raw: Raw<'_>) -> Option<Usage> {
    let number = |raw: Raw| serde_json::from_str(raw?.get()).ok();
    let names = ["input_tokens", "input_tokens_details", "output_tokens"];
    let [input, details, output] = fields(raw?.get(), names)?;
    let details = details.and_then(|raw| fields(raw.get(), ["cached_tokens"]));
    Some(Usage {
        input: number(input),
        cached: details.and_then(|[cached]| number(cached)),
        output: number(output),
    })
}

// --- errors -----------------------------------------------------------------------------------

/// What a server says of a failure, wherever it says it. Outside text: not for a terminal as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerError {
    /// The most telling short name: the code, or the type where the code is a mere number.
    pub code: String,
    kind: String,
    param: String,
    pub message: String,
}

/// Codes and types of a limit that waiting does not lift.
const QUOTA: [&str; 5] = [
    "insufficient_quota",
    "credit_balance_exhausted",
    "organization_spend_limit_exceeded",
    "project_spend_limit_exceeded",
    "organization_usage_limit_exceeded",
];

/// Codes of a refusal by the provider's rules.
const POLICY: [&str; 5] =
    ["invalid_prompt", "cyber_policy", "bio_policy", "content_filter", "content_policy_violation"];

/// How OpenAI, llama.cpp, LM Studio, OpenRouter and xAI name a conversation that is too long.
const TOO_LONG: [&str; 7] = [
    "context_length_exceeded",
    "exceed_context_size",
    "context window",
    "context size",
    "context length",
    "prompt length",
    "prompt is too long",
];

impl ServerError {
    /// Reads an error in any of the shapes met: an `error` object or text, the same fields without
    /// it, `detail`, or no JSON at all, whose text is then the message.
    pub fn read(body: &[u8]) -> ServerError {
        let mut body = body.get(..ERROR_BODY_BYTES as usize).unwrap_or(body).to_vec();
        mend(&mut body);
        let text = String::from_utf8_lossy(&body);
        let value: Value = serde_json::from_str(&text).unwrap_or_default();
        let inner = value.get("error").filter(|error| !error.is_null()).unwrap_or(&value);
        let find = |names: &[&str]| {
            let places = names.iter().flat_map(|name| [inner.get(name), value.get(name)]);
            places.flatten().find_map(plain)
        };
        let kind = find(&["error_type", "type"]).filter(|kind| kind != "error");
        let kind = kind.unwrap_or_default();
        let code = find(&["code", "error_code"]).filter(|code| code.parse::<u32>().is_err());
        let code = code.unwrap_or_else(|| kind.clone());
        let message = find(&["message", "detail", "msg"])
            .or_else(|| plain(inner))
            .or_else(|| value.pointer("/detail/0/msg").and_then(plain))
            .unwrap_or_else(|| match code.is_empty() {
                true => text.into_owned(),
                false => String::new(),
            });
        ServerError { code, kind, param: find(&["param"]).unwrap_or_default(), message }
    }

    fn is_one_of(&self, names: &[&str]) -> bool {
        names.contains(&&*self.code) || names.contains(&&*self.kind)
    }

    pub fn is_quota(&self) -> bool {
        self.is_one_of(&QUOTA)
    }

    pub fn is_policy(&self) -> bool {
        self.is_one_of(&POLICY)
    }

    pub fn is_too_long(&self) -> bool {
        let said = format!("{} {} {}", self.code, self.kind, self.message).to_ascii_lowercase();
        TOO_LONG.iter().any(|wording| said.contains(wording))
    }

    /// What a 400 with this error refuses, where a request can do without it.
    pub fn refuses(&self) -> Option<Optional> {
        if self.is_one_of(&["invalid_encrypted_content"]) {
            return Some(Optional::Reasoning);
        }
        if !self.is_one_of(&["unknown_parameter", "unsupported_parameter"]) {
            return None;
        }
        // Where no field names the parameter, the message does: in quotes, or after a colon.
        let quoted = self.message.split(['\'', '"', '`']).nth(1);
        let named = quoted.or_else(|| Some(self.message.split_once(':')?.1));
        let place = match self.param.is_empty() {
            true => named.unwrap_or_default(),
            false => &self.param,
        };
        let mut words = place.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        words.find_map(|word| match word {
            "include" => Some(Optional::Include),
            "parallel_tool_calls" => Some(Optional::ParallelToolCalls),
            "phase" => Some(Optional::Phase),
            _ => None,
        })
    }
}

fn plain(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::sse::{Frames, tests::Random};
    use crate::step::{NotRun, Ran};

    /// What a stream gives, in a line: its text, calls and items, or the fault.
    fn read(pieces: &[&[u8]]) -> String {
        let mut response = Response::default();
        match run(pieces, &mut response) {
            Ok(Some(output)) => {
                let calls = output.calls.iter().map(|call| {
                    let altered = if call.altered { "!" } else { "" };
                    format!("{altered}{}({})={}", call.name, call.call_id, call.arguments)
                });
                let calls: Vec<_> = calls.collect();
                let items = output.items.len();
                format!("{:?} {calls:?} {items} items", response.text)
            }
            Ok(None) => format!("{:?} cut", response.text),
            Err(fault) => format!("{:?} {fault:?}", response.text),
        }
    }

    fn run(pieces: &[&[u8]], response: &mut Response) -> Result<Option<Output>, Fault> {
        let mut frames = Frames::new();
        for piece in pieces {
            let mut bytes = *piece;
            while let Some(event) = frames.next(&mut bytes).map_err(|_| Fault::TooLarge)? {
                if let Some(output) = response.event(event)? {
                    return Ok(Some(output));
                }
            }
        }
        match frames.finish() {
            Some(event) => response.last_event(event),
            None => Ok(None),
        }
    }

    fn output(stream: &str) -> Result<Output, Fault> {
        let mut response = Response::default();
        run(&[stream.as_bytes()], &mut response).map(Option::unwrap)
    }

    fn events(events: &[&str]) -> String {
        events.iter().map(|event| format!("data: {event}\n\n")).collect()
    }

    /// A stream that only says what its output is.
    fn completed(items: &str) -> String {
        events(&[&format!(
            r#"{{"type":"response.completed","response":{{"status":"completed","output":[{items}]}}}}"#
        )])
    }

    const HELLO: &str =
        r#"{"type":"message","role":"assistant","content":[{"type":"output_text","text":"Hello"}]}"#;

    fn call(call_id: &str, arguments: &str) -> String {
        format!(r#"{{"type":"function_call","call_id":{call_id},"name":"bash","arguments":{arguments}}}"#)
    }

    fn fixtures() -> Vec<(String, Vec<u8>)> {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/sse");
        let files = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
        let files = files.filter(|path| path.extension().is_some_and(|it| it == "sse"));
        let mut files: Vec<_> = files
            .map(|path| {
                let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
                (name, std::fs::read(path).unwrap())
            })
            .collect();
        files.sort();
        files
    }

    const LLAMA_TEXT: &str = "How can I assist you? What's the task you're working on?";

    #[test]
    fn every_server_is_read_right() {
        let expected = [
            ("azure-failed", r#""" Failed(ServerError { code: "", kind: "", param: "", message: "" })"#.into()),
            ("azure-tool-call", r#""" ["bash(call_7)={\"command\":\"ls\"}"] 1 items"#.into()),
            ("codex-empty-output", r#""" ["bash(call_16)={\"command\":\"pwd\"}"] 3 items"#.into()),
            ("litellm-text", r#""From a bridge" [] 1 items"#.into()),
            ("llama-cpp-after-tool", String::new()),
            ("llama-cpp-text", format!("{LLAMA_TEXT:?} [] 1 items")),
            (
                "llama-cpp-tool-call",
                r#""" ["bash(call_KxCagB3eHT98P5F7V3KjzMN5xhimu3Fu)={\"command\": \"uname -sr\"}"] 1 items"#.into(),
            ),
            ("lmstudio-text", r#""One\nTwo" [] 1 items"#.into()),
            ("ollama-cut", r#""" cut"#.into()),
            ("ollama-tool-call", r#""" ["bash(call_11)={\"command\":\"ls -a\"}"] 2 items"#.into()),
            (
                "openai-error",
                r#""" Failed(ServerError { code: "server_error", kind: "", param: "", message: "The server had an error while processing your request." })"#.into(),
            ),
            ("openai-incomplete", r#""First I will" Incomplete("max_output_tokens")"#.into()),
            ("openai-refusal", r#""Model refused: I can't help with that." [] 1 items"#.into()),
            ("openai-text", r#""Zürich: 世界 🙂\n" [] 2 items"#.into()),
            (
                "openai-tool-call",
                r#""Looking." ["bash(call_2)={\"command\":\"go version\"}"] 3 items"#.into(),
            ),
            (
                "openrouter-error",
                r#""Half" Failed(ServerError { code: "provider_unavailable", kind: "provider_unavailable", param: "", message: "Provider disconnected" })"#.into(),
            ),
            ("openrouter-text", r#""Hi there" [] 1 items"#.into()),
            (
                "sglang-generic-output",
                r#""" Invalid("it holds neither text nor a tool call")"#.into(),
            ),
            (
                "vllm-two-calls",
                r#""" ["bash(call_a)={\"command\": \"date\"}", "bash(call_b)={\"command\": \"id\"}"] 2 items"#.into(),
            ),
            ("xai-text", r#""42" [] 2 items"#.into()),
        ];
        let found = fixtures();
        assert_eq!(found.len(), expected.len());
        for ((name, stream), (expected_name, result)) in found.iter().zip(expected) {
            assert_eq!(name, expected_name);
            let got = read(&[stream]);
            match result.is_empty() {
                true => assert!(got.ends_with(" [] 1 items"), "{got}"),
                false => assert_eq!(got, result, "{name}"),
            }
        }
    }

    #[test]
    fn no_fixture_gives_calls_or_text_twice_however_it_is_cut_off() {
        for (name, stream) in fixtures() {
            let whole = read(&[&stream]);
            // In steps, as each cut reads the stream anew; every kind of byte is met.
            for end in (0..stream.len()).step_by(23) {
                let got = read(&[&stream[..end]]);
                assert!(got == whole || !got.ends_with("items"), "{name} at {end}: {got}");
            }
        }
    }

    #[test]
    fn any_bytes_in_any_pieces_are_read_alike() {
        let seed = Random::seed();
        let mut random = Random(seed);
        let fixtures = fixtures();
        for round in 0..400 {
            let (name, stream) = &fixtures[random.below(fixtures.len())];
            let mut stream = stream.clone();
            for _ in 0..random.below(4) {
                let at = random.below(stream.len());
                let tokens: [&[u8]; 11] =
                    [b"\n", b"\r\n\r\n", b"\\ud800", b"\\", b"\"", b"{", b"}", b"[", b"null", b"\xff", b""];
                let bytes = tokens[random.below(tokens.len())];

                let end = (at + random.below(3)).min(stream.len());
                stream.splice(at..end, bytes.iter().copied());
            }
            let cut = random.below(stream.len());
            let whole = read(&[&stream]);
            let (left, right) = stream.split_at(cut);
            assert_eq!(read(&[left, right]), whole, "seed {seed}, round {round}, {name} at {cut}");
        }
    }

    #[test]
    fn only_the_terminal_event_counts() {
        let item = format!(r#"{{"type":"response.output_item.done","item":{HELLO}}}"#);
        let arguments = r#"{"type":"response.function_call_arguments.done","arguments":"{}"}"#;
        assert_eq!(read(&[events(&[&item, arguments]).as_bytes()]), r#""" cut"#);
        assert_eq!(read(&[events(&[&item, "[DONE]"]).as_bytes()]), r#""" Cut"#);
        for (status, fault) in [
            (r#""failed""#, "Failed("),
            (r#""cancelled""#, "Failed("),
            (r#""incomplete""#, "Incomplete("),
            (r#""in_progress""#, "Invalid("),
            ("null", "Invalid("),
            ("7", "Invalid("),
        ] {
            let end = format!(
                r#"{{"type":"response.completed","response":{{"status":{status},"output":[{HELLO}]}}}}"#
            );
            let got = read(&[events(&[&end]).as_bytes()]);
            assert!(got.contains(fault), "{status}: {got}");
        }
    }

    #[test]
    fn the_terminal_output_wins_then_finished_items_then_text() {
        let delta = r#"{"type":"response.output_text.delta","delta":"streamed"}"#;
        let done = r#"{"type":"response.output_item.done","item":{"type":"message","role":"assistant","content":"finished"}}"#;
        let end = completed("");
        let all = format!("{}{}", events(&[delta, done]), completed(HELLO));
        assert_eq!(output(&all).unwrap().items[0].get(), HELLO);
        let finished = output(&format!("{}{end}", events(&[delta, done]))).unwrap();
        assert!(finished.items[0].get().contains("finished"));
        let streamed = output(&format!("{}{end}", events(&[delta]))).unwrap();
        assert_eq!(
            streamed.items[0].get(),
            r#"{"content":[{"annotations":[],"text":"streamed","type":"output_text"}],"role":"assistant","type":"message"}"#
        );
        assert!(output(&end).is_err());
    }

    #[test]
    fn unknown_things_pass_and_null_is_absent() {
        let events = events(&[
            r#"{"type":"keepalive","delta":7,"item":[],"error":{"code":1}}"#,
            r#"{"type":"response.output_item.added","item":null}"#,
            r#"{"type":"response.output_text.done","text":null}"#,
            "12", "\"ping\"", "null", "[1]", "ping", "",
            r#"{"type":"response.output_text.delta","delta":"Hello","item_id":null,"output_index":{},"logprobs":3}"#,
            r#"{"type":"response.completed","error":null,"response":{"status":"completed","error":null,"usage":[],
                "incomplete_details":null,"output":[{"type":"new_thing","content":7,"status":"odd"},
                {"type":"message","role":"assistant","id":null,"status":null,"phase":null,"content":[{"type":"new_part"},
                {"type":"output_text","text":"Hello","annotations":null}]}]}}"#,
        ]
        .map(|event| event.replace('\n', " "))
        .each_ref()
        .map(String::as_str));
        assert_eq!(read(&[events.as_bytes()]), r#""Hello" [] 2 items"#);
    }

    #[test]
    fn what_should_be_known_and_cannot_be_read_is_a_fault() {
        for event in [
            r#"{"type":"response.output_text.delta"}"#,
            r#"{"type":"response.output_text.delta","delta":5}"#,
            r#"{"type":"response.output_text.delta","delta":"a","delta":"b"}"#,
            r#"{"type":"response.output_text.delta","delta":"a"} {}"#,
            r#"{"type":"response.output_text.delta","delta":"a"#,
            r#"{"type":"response.refusal.delta","delta":["a"]}"#,
            r#"{"type":"response.output_item.done"}"#,
            r#"{"type":"response.completed"}"#,
            r#"{"type":"response.completed","response":["completed"]}"#,
            r#"{"type":"response.completed","response":{"status":"completed","output":{}}}"#,
            "{",
        ] {
            let got = read(&[events(&[event]).as_bytes()]);
            assert!(got.contains("Invalid("), "{event}: {got}");
        }
        let named = "event: response.completed\ndata: 5\n\n";
        assert!(read(&[named.as_bytes()]).contains("Invalid("));
        let named = r#"event: response.output_text.delta
data: {"delta":"by name"}

"#;
        assert_eq!(read(&[named.as_bytes()]), r#""by name" cut"#);
    }

    #[test]
    fn an_output_is_valid_as_a_whole_or_not_at_all() {
        let good = call(r#""c1""#, r#""{}""#);
        let long = format!("\"{}\"", "c".repeat(CALL_ID_BYTES));
        let longer = format!("\"{}\"", "c".repeat(CALL_ID_BYTES + 1));
        for items in [
            good.clone(),
            format!("{HELLO},{good}"),
            call(&long, r#""""#),
            format!(r#"{HELLO},{{"type":"web_search_call"}},{{"type":"mcp_list_tools"}},{{"type":"x"}}"#),
            r#"{"type":"message","role":"assistant","content":"plain"}"#.into(),
        ] {
            assert!(output(&completed(&items)).is_ok(), "{items}");
        }
        for (bad, why) in [
            (r#""text""#.into(), "not an item"),
            (r#"["message"]"#.into(), "not an item"),
            ("{}".into(), "no type"),
            (r#"{"type":"message","role":"user","content":"x"}"#.into(), "not the assistant's"),
            (r#"{"type":"message","content":"x"}"#.into(), "not the assistant's"),
            (
                r#"{"type":"message","role":"assistant","status":"in_progress","content":"x"}"#.into(),
                "status",
            ),
            (r#"{"type":"message","role":"assistant","status":5,"content":"x"}"#.into(), "status"),
            (r#"{"type":"message","role":"assistant","content":5}"#.into(), "list"),
            (r#"{"type":"message","role":"assistant","content":[{"type":"output_text"}]}"#.into(), "text"),
            (r#"{"type":"message","role":"assistant","role":"assistant","content":"x"}"#.into(), "twice"),
            (call("null", r#""{}""#), "call_id"),
            (call(r#""""#, r#""{}""#), "call_id"),
            (call(&longer, r#""{}""#), "call_id"),
            (call(r#""c2""#, "{}"), "arguments"),
            (call(r#""c2""#, "null"), "arguments"),
            (good.clone(), "another tool call"),
            (good.replace("\"c1\"", "\"c2\"").replace("bash", ""), "name"),
            (
                good.replace("c1", "c2").replace('{', "{\"status\":\"incomplete\",").replacen(
                    "\"{\"status\":\"incomplete\",}\"",
                    "\"{}\"",
                    1,
                ),
                "status",
            ),
            (r#"{"type":"custom_tool_call","call_id":"x"}"#.into(), "can't answer"),
            (r#"{"type":"local_shell_call"}"#.into(), "can't answer"),
            (r#"{"type":"mcp_approval_request"}"#.into(), "can't answer"),
        ] {
            let got = output(&completed(&format!("{good},{bad}")));
            match got {
                Err(Fault::Invalid(reason)) => assert!(reason.contains(why), "{bad}: {reason}"),
                other => panic!("{bad}: {other:?}"),
            }
        }
        for nothing in [
            "",
            r#"{"type":"reasoning","summary":[]}"#,
            r#"{"type":"message","role":"assistant","content":[]}"#,
        ] {
            assert!(matches!(output(&completed(nothing)), Err(Fault::Invalid(_))), "{nothing}");
        }
    }

    #[test]
    fn text_of_two_messages_does_not_run_together() {
        let delta = |index: u32, text: &str| {
            format!(r#"{{"type":"response.output_text.delta","output_index":{index},"delta":"{text}"}}"#)
        };
        let stream = events(&[&delta(0, "One"), &delta(0, " more"), &delta(2, "Two")]);
        assert_eq!(read(&[stream.as_bytes()]), r#""One more\nTwo" cut"#);
        let never_streamed = completed(&format!("{HELLO},{HELLO}"));
        assert_eq!(read(&[never_streamed.as_bytes()]), r#""Hello\nHello" [] 2 items"#);
    }

    #[test]
    fn half_a_character_costs_no_event_and_its_call_is_marked() {
        let arguments = r#""{\"command\":\"a\ud800b\"}""#;
        let stream = format!(
            "{}{}",
            events(&[r#"{"type":"response.output_text.delta","delta":"x\uDFFFy \ud83d\ude42 \\ud800"}"#]),
            completed(&call(r#""c1""#, arguments)),
        );
        assert_eq!(
            read(&[stream.as_bytes()]),
            r#""x\u{fffd}y 🙂 \\ud800" ["!bash(c1)={\"command\":\"a\u{fffd}b\"}"] 1 items"#
                .replace("\\u{fffd}", "\u{fffd}")
        );
        // The model's own U+FFFD is no alteration, nor is an escape inside the arguments' own JSON.
        let whole = completed(&call(r#""c1""#, r#""{\"command\":\"a\ufffd\\ud800\"}""#));
        assert!(!output(&whole).unwrap().calls[0].altered);
        // Bytes that are no UTF-8 are as much of an alteration.
        let mut bytes = completed(&call(r#""c1""#, r#""{\"command\":\"a?b\"}""#)).into_bytes();
        let at = bytes.iter().position(|byte| *byte == b'?').unwrap();
        bytes[at] = 0xff;
        assert!(read(&[&bytes]).contains("!bash(c1)"));
        // The mark also comes from a finished item whose terminal event has no output.
        let done = format!(r#"{{"type":"response.output_item.done","item":{}}}"#, call(r#""c1""#, arguments));
        let stream = format!("{}{}", events(&[&done]), completed(""));
        assert!(output(&stream).unwrap().calls[0].altered);
    }

    #[test]
    fn mending_keeps_the_length_and_every_whole_character() {
        for (from, to) in [
            (r"\ud83d\ude42", r"\ud83d\ude42"),
            (r"\uD83D\uDE42", r"\uD83D\uDE42"),
            (r"\ud83d", r"\ufffd"),
            (r"\ude42\ud83d", r"\ufffd\ufffd"),
            (r"\ud83d\ud83d\ude42", r"\ufffd\ud83d\ude42"),
            (r"\\ud83d", r"\\ud83d"),
            (r"\\\ud83d", r"\\\ufffd"),
            (r"\ud83", r"\ud83"),
            (r"\u+d83", r"\u+d83"),
            (r"\", r"\"),
            ("", ""),
        ] {
            let mut bytes = from.as_bytes().to_vec();
            assert_eq!(mend(&mut bytes), from != to, "{from}");
            assert_eq!(bytes, to.as_bytes(), "{from}");
        }
    }

    #[test]
    fn items_are_kept_byte_for_byte_on_one_line() {
        let odd = "{ \"type\" :\"x\",\n\t\"a\\u0062\":1.50e+2,\r\n\"a\":1,\"a\":2,\"text\":\"\\n\u{2028}\"}";
        let stream = completed(&format!("{odd} , {HELLO}"));
        // The event's own line breaks are data lines of one event.
        let stream = format!("{}\n\n", stream.trim().replace("\r\n", "\n").replace('\n', "\ndata:"));
        let items = output(&stream).unwrap().items;
        assert_eq!(items[0].get(), odd.replace("\r\n", "\n").replace('\n', " "));
        let mut sent = Vec::new();
        Wire.output(&[&items[0], &items[1]], &mut sent);
        let sent = String::from_utf8(sent).unwrap();
        assert_eq!(sent, format!("{},{HELLO}", items[0].get()));
    }

    #[test]
    fn bounds_are_kept() {
        let many = vec!["1"; RESPONSE_ITEMS + 1].join(",");
        assert!(matches!(output(&completed(&many)), Err(Fault::Invalid(_))));
        let big = format!(r#"{{"type":"x","a":"{}"}}"#, "a".repeat(RESPONSE_BYTES / 2));
        assert_eq!(output(&completed(&format!("{HELLO},{big},{big}"))).err(), Some(Fault::TooLarge));
        assert!(output(&completed(&format!("{HELLO},{big}"))).is_ok());
        let done = format!(r#"{{"type":"response.output_item.done","item":{big}}}"#);
        assert_eq!(output(&events(&[&done, &done])).err(), Some(Fault::TooLarge));
        let delta = "a".repeat(RESPONSE_BYTES / 2 + 1);
        let delta = format!(r#"{{"type":"response.output_text.delta","delta":"{delta}"}}"#);
        assert_eq!(output(&events(&[&delta, &delta])).err(), Some(Fault::TooLarge));
    }

    #[test]
    fn usage_is_read_as_far_as_it_goes() {
        let usage = |json: &str| {
            let end = format!(
                r#"{{"type":"response.completed","response":{{"status":"completed","output":[{HELLO}],"usage":{json}}}}}"#
            );
            output(&events(&[&end])).unwrap().usage
        };
        let all = r#"{"input_tokens":3,"input_tokens_details":{"cached_tokens":2},"output_tokens":1}"#;
        let (input, cached, output) = (Some(3), Some(2), Some(1));
        assert_eq!(usage(all), Some(Usage { input, cached, output }));
        let some = r#"{"input_tokens":3,"input_tokens_details":null,"output_tokens":"1"}"#;
        let (cached, output) = (None, None);
        assert_eq!(usage(some), Some(Usage { input, cached, output }));
        assert_eq!(usage("7"), None);
    }

    fn spelled(items: &[&str], omitted: &[Optional]) -> String {
        let items: Vec<Box<RawValue>> =
            items.iter().map(|item| RawValue::from_string((*item).to_owned()).unwrap()).collect();
        let items: Vec<&RawValue> = items.iter().map(AsRef::as_ref).collect();
        let mut out = Vec::new();
        replay(&items, omitted, &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_hollow_reasoning_item_goes_with_the_id_that_pairs_with_it() {
        let full = r#"{"type":"reasoning","id":"rs_1","summary":[],"encrypted_content":"x"}"#;
        let local = r#"{"type":"reasoning","id":"rs_2","encrypted_content":"","content":[{"type":"reasoning_text","text":"t"}]}"#;
        let message = r#"{ "id":"msg_1", "type":"message","text":"\u00e9" ,"id":"msg_1"}"#;
        let without_id = r#"{"type":"message","text":"\u00e9"}"#;
        for kept in [full, local] {
            assert_eq!(spelled(&[kept, message], &[]), format!("{kept},{message}"));
        }
        for hollow in [
            r#"{"type":"reasoning","id":"rs_3","summary":[]}"#,
            r#"{"type":"reasoning","id":"rs_3","encrypted_content":"","content":[]}"#,
            r#"{"type":"reasoning","id":"rs_3","encrypted_content":null,"content":null}"#,
        ] {
            assert_eq!(spelled(&[hollow, message, message], &[]), format!("{without_id},{message}"));
        }
        assert_eq!(
            spelled(&[full, message, local, message], &[Optional::Reasoning]),
            format!("{without_id},{without_id}")
        );
    }

    #[test]
    fn arguments_that_are_no_json_go_as_an_empty_object() {
        let call = |arguments: &str| {
            format!(r#"{{"type":"function_call","id":"fc_1","arguments":{arguments},"call_id":"c"}}"#)
        };
        for bad in [r#""""#, r#""{\"a\":""#, r#""{} x""#, r#""{\"a\":\"\\ud800\"}""#, "7"] {
            assert_eq!(spelled(&[&call(bad)], &[]), call(r#""{}""#), "{bad}");
        }
        for good in [r#""{}""#, r#"" [1] ""#, r#""{\"command\":\"ls\",\"command\":1}""#] {
            assert_eq!(spelled(&[&call(good)], &[]), call(good), "{good}");
        }
    }

    #[test]
    fn phase_is_left_out_of_messages_alone() {
        let items = [
            r#"{"type":"message","phase":"commentary","role":"assistant"}"#,
            r#"{"type":"message","role":"assistant", "phase":null}"#,
            r#"{"type":"message", "role":"user","content":"\"phase\""}"#,
            r#"{"type":"x","phase":1}"#,
        ];
        let bare = r#"{"type":"message","role":"assistant"}"#;
        let [_, _, user, other] = items;
        let expected = format!("{bare},{bare},{user},{other}");
        assert_eq!(spelled(&items, &[Optional::Phase]), expected);
        assert_eq!(spelled(&items, &[]), items.join(","));
        let (history, turn) = (items[..2].join(","), items[2..].join(","));
        let input = Input { history: Arc::new(history.into_bytes()), turn: Arc::new(turn.into_bytes()) };
        assert_eq!(*reduced(&input, &[Optional::Phase]).unwrap().history, expected.as_bytes());
        assert!(reduced(&input, &[Optional::Include]).is_none());
    }

    #[test]
    fn facts_are_spelled_for_every_server() {
        let mut input = Vec::new();
        Wire.question("a \"b\"\n\u{2028}", &mut input);
        Wire.answer("c", &mut input);
        Wire.result("call_1", &ToolResult::ran(Ran::Failed, "x\n", Some(1), true), &mut input);
        Wire.result("call_2", &ToolResult::not_run(NotRun::Denied, ""), &mut input);
        let input = String::from_utf8(input).unwrap();
        assert_eq!(input, [
            "{\"content\":[{\"text\":\"a \\\"b\\\"\\n\u{2028}\",\"type\":\"input_text\"}],\"role\":\"user\",\"type\":\"message\"}",
            r#"{"content":[{"annotations":[],"text":"c","type":"output_text"}],"role":"assistant","type":"message"}"#,
            r#"{"call_id":"call_1","output":"{\"status\":\"failed\",\"output\":\"x\\n\",\"exit_code\":1,\"truncated\":true}","type":"function_call_output"}"#,
            r#"{"call_id":"call_2","output":"{\"status\":\"denied\",\"output\":\"\"}","type":"function_call_output"}"#,
        ].join(","));
    }

    #[test]
    fn a_request_has_exactly_the_agreed_fields() {
        let tools =
            [Definition { name: "bash", description: "Runs \"it\"", parameters: r#"{"type":"object"}"# }];
        let body = |omitted: &[Optional]| {
            let body = [head("m\"1", "be\nbrief"), b"7".to_vec(), tail(&tools, omitted)].concat();
            serde_json::from_slice::<Value>(&body).unwrap()
        };
        let mut expected = json!({
            "model": "m\"1", "instructions": "be\nbrief", "input": [7], "store": false, "stream": true,
            "tools": [{"type": "function", "name": "bash", "description": "Runs \"it\"",
                       "parameters": {"type": "object"}, "strict": true}],
            "include": ["reasoning.encrypted_content"], "parallel_tool_calls": false,
        });
        assert_eq!(body(&[]), expected);
        expected.as_object_mut().unwrap().remove("include");
        assert_eq!(body(&[Optional::Include]), expected);
        expected.as_object_mut().unwrap().remove("parallel_tool_calls");
        assert_eq!(body(&[Optional::Include, Optional::ParallelToolCalls]), expected);
    }

    #[test]
    fn errors_are_found_in_every_shape() {
        for (body, code, message) in [
            (r#"{"error":{"message":"m","type":"t","param":null,"code":"c"}}"#, "c", "m"),
            (r#"{"error":{"message":"m","type":"t","param":null,"code":null}}"#, "t", "m"),
            (
                r#"{"error":{"code":400,"message":"m","type":"exceed_context_size_error"}}"#,
                "exceed_context_size_error",
                "m",
            ),
            (r#"{"error":{"code":502,"message":"m"},"error_type":"e"}"#, "e", "m"),
            (r#"{"detail":"m"}"#, "", "m"),
            (r#"{"detail":[{"loc":["body"],"msg":"m","type":"missing"}]}"#, "", "m"),
            (r#"{"error_code":"BAD_REQUEST","message":"m"}"#, "BAD_REQUEST", "m"),
            (r#"{"error":"m"}"#, "", "m"),
            (r#"{"type":"error","code":"c","message":"m","param":null}"#, "c", "m"),
            (r#"{"type":"error","error":{"type":"t","code":null,"message":"m"}}"#, "t", "m"),
            (r#"{"error":{"code":"c"}}"#, "c", ""),
            (r#"{"error":{"message":"\ud800"}}"#, "", "\u{fffd}"),
            ("<h1>502</h1>", "", "<h1>502</h1>"),
            ("", "", ""),
        ] {
            let error = ServerError::read(body.as_bytes());
            assert_eq!((error.code.as_str(), error.message.as_str()), (code, message), "{body}");
        }
        assert_eq!(ServerError::read(b"a\xff").message, "a\u{fffd}");
        let long = vec![b'x'; ERROR_BODY_BYTES as usize + 1];
        assert_eq!(ServerError::read(&long).message.len(), ERROR_BODY_BYTES as usize);
    }

    #[test]
    fn what_a_400_refuses_is_found_by_its_code() {
        let refuses = |code: &str, param: &str, message: &str| {
            let body = json!({"error": {"code": code, "param": param, "message": message}});
            ServerError::read(body.to_string().as_bytes()).refuses()
        };
        let unknown = "unknown_parameter";
        assert_eq!(refuses("invalid_encrypted_content", "", ""), Some(Optional::Reasoning));
        assert_eq!(refuses(unknown, "input[52].phase", ""), Some(Optional::Phase));
        assert_eq!(refuses("unsupported_parameter", "include[0]", ""), Some(Optional::Include));
        let message = "Unknown parameter: 'input[2].phase'.";
        assert_eq!(refuses(unknown, "", message), Some(Optional::Phase));
        let message = "Unsupported parameter: parallel_tool_calls";
        assert_eq!(refuses(unknown, "", message), Some(Optional::ParallelToolCalls));
        let message = "Unknown parameter: 'foo'. Others include 'include'.";
        assert_eq!(refuses(unknown, "", message), None);
        assert_eq!(refuses("invalid_value", "include", ""), None);
        assert_eq!(refuses(unknown, "store", ""), None);
    }

    #[test]
    fn a_conversation_too_long_is_known_by_every_wording() {
        for message in [
            "Your input exceeds the context window of this model.",
            "request (9019 tokens) exceeds the available context size (4096 tokens), try increasing it",
            "The number of tokens to keep is greater than the context length",
            "This endpoint's maximum context length is 4096 tokens.",
            "This model's maximum prompt length is 131072",
        ] {
            let body = json!({"error": {"code": "invalid_prompt", "message": message}}).to_string();
            assert!(ServerError::read(body.as_bytes()).is_too_long(), "{message}");
        }
        let code = br#"{"error":{"code":"context_length_exceeded"}}"#;
        assert!(ServerError::read(code).is_too_long());
        let other = ServerError::read(br#"{"error":{"code":"invalid_prompt","message":"no"}}"#);
        assert!(!other.is_too_long() && other.is_policy());
    }
}
