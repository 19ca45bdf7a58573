//! What a server may send, and when: the built program against servers that stream oddly, break
//! off, refuse, are silent, or are strict about what they are sent.

mod support;

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use support::endpoint::{
    Answer, Endpoint, Framing, Piece, Release, Reply, Request, error_flat, error_nested, hold,
    http_error, quoted, text,
};
use support::home::{Home, Output};
use support::tty::{QUESTION, Size};

const CUT: &str = "mino: The answer was cut off before its end; ask again.\n\
                   hint: What was shown of it is not part of the conversation.\n";

/// One chat with a question for each of the answers; its errors don't end it.
fn chat(home: &Home, questions: usize) -> Output {
    home.mino::<&str>(&[]).run("Go\n".repeat(questions))
}

/// What was kept of each completed response: its text, and the exact text of its items.
fn kept(home: &Home) -> Vec<(String, String)> {
    let lines = home.lines();
    let responses = lines
        .iter()
        .filter(|line| line.contains("\"kind\":\"model_response\""));
    responses
        .map(|line| {
            let record: Value = serde_json::from_str(line).unwrap();
            let items = line.split_once("\"output\":").unwrap().1;
            (
                record["text"].as_str().unwrap().to_owned(),
                items.to_owned(),
            )
        })
        .collect()
}

// --- framing ------------------------------------------------------------------------------------

/// A turn's events as one text, with line ends of LF.
fn events(reply: Answer) -> String {
    String::from_utf8(reply.body()).unwrap()
}

fn stream(body: impl Into<Vec<u8>>) -> Answer {
    Answer::stream(vec![Piece::Bytes(body.into())])
}

fn raw(head: &str, body: &str) -> Answer {
    Answer::raw(vec![Piece::text(format!("{head}{body}"))])
}

/// Clients split streams at `\n\n` and looked for `data: ` with its blank, and saw nothing at all of
/// servers that write line ends as the standard also allows. The same turn is served in every
/// spelling of the standard, some byte by byte; what comes of it is the same each time.
#[test]
fn every_spelling_of_a_stream_is_the_same_stream() {
    let plain = events(
        Reply::new()
            .reasoning("c2VjcmV0==")
            .message("It is 中 and é 🙂.")
            .completed(),
    );
    let without_event_lines: String = plain
        .split_inclusive('\n')
        .filter(|line| !line.starts_with("event:"))
        .collect();
    // JSON may be broken between its tokens, and an event over several lines.
    let spread = plain.replace(
        ",\"sequence_number\"",
        ",\ndata:\ndata:  \"sequence_number\"",
    );
    let crlf = plain.replace('\n', "\r\n");
    let bodies = [
        stream(&*plain),
        stream(&*plain).byte_by_byte(),
        stream(&*crlf),
        stream(&*crlf).byte_by_byte(),
        stream(plain.replace('\n', "\r")),
        stream(plain.replace('\n', "\r")).byte_by_byte(),
        stream(plain.replace("data: ", "data:")),
        stream(spread),
        stream(&*without_event_lines),
        stream(plain.replace("\n\n", "\n\n: a comment\n\n:\n")).byte_by_byte(),
        stream(plain.replace(
            "event: ",
            "id: 7\nretry: 1000\nunknown: x\nunknown\nevent: ",
        )),
        stream(format!("\u{feff}{plain}")),
        stream(format!("\u{feff}{plain}")).byte_by_byte(),
        stream(format!("{plain}data: [DONE]\n\n")),
        stream(plain.trim_end()),
        stream(&*plain).framed(Framing::Close),
        stream(&*plain).framed(Framing::ContentLength),
        // An old server, and one that says more before its answer.
        raw(
            "HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\n",
            &plain,
        ),
        raw(
            "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\nHTTP/1.1 200 OK\r\n\r\n",
            &plain,
        ),
        // An empty event, one without an object, and types that nobody knows.
        stream(format!(
            "data:\n\ndata: 7\n\nevent: ping\n\ndata: {{\"type\":\"response.brand_new\",\"response\":7}}\n\n{plain}"
        )),
    ];
    let count = bodies.len();
    let endpoint = Endpoint::start(bodies);
    let home = Home::new(&endpoint);
    let output = chat(&home, count).expect_code(0);
    assert_eq!(output.stderr, "");
    let shown = output
        .stdout
        .matches("Assistant> It is 中 and é 🙂.\n")
        .count();
    assert_eq!(shown, count, "{output}");
    let kept = kept(&home);
    assert_eq!(kept.len(), count);
    for (number, response) in kept.iter().enumerate() {
        assert_eq!(response, &kept[0], "spelling {number}");
    }
}

/// Small servers leave out what the reference has: event lines, numbers, usage, finished items, ids
/// that agree, or the output of the last event. Each line here is the way of one of them.
#[test]
fn output_is_found_wherever_a_server_puts_it() {
    let item = r#"{"type":"message","role":"assistant","content":[{"type":"output_text","text":"Hello."}]}"#;
    let delta = r#"{"type":"response.output_text.delta","delta":"Hello."}"#;
    let done = format!(r#"{{"type":"response.output_item.done","item":{item}}}"#);
    let completed = |rest: &str| {
        format!(r#"{{"type":"response.completed","response":{{"status":"completed"{rest}}}}}"#)
    };
    let built = r#"{"content":[{"annotations":[],"text":"Hello.","type":"output_text"}],"role":"assistant","type":"message"}"#;
    for (events, expected) in [
        // In the last event alone.
        (vec![completed(&format!(r#","output":[{item}]"#))], item),
        // In finished items, with an output that is empty, null or missing.
        (
            vec![delta.into(), done.clone(), completed(r#","output":[]"#)],
            item,
        ),
        (
            vec![
                delta.into(),
                done.clone(),
                completed(r#","output":null,"usage":null,"error":null"#),
            ],
            item,
        ),
        (vec![done.clone(), completed("")], item),
        // In both, under another id: the last event counts.
        (
            vec![
                delta.into(),
                done.replace("\"type\":\"message\"", "\"id\":\"x\",\"type\":\"message\""),
                completed(&format!(r#","output":[{item}]"#)),
            ],
            item,
        ),
        // Nowhere but in the streamed text.
        (vec![delta.into(), completed("")], built),
        // The type is in the event line alone.
        (
            vec![
                format!(
                    "X\nevent: response.output_text.delta\ndata: {}",
                    delta.replacen("\"type\":\"response.output_text.delta\",", "", 1)
                ),
                completed(""),
            ],
            built,
        ),
    ] {
        let body: String = events
            .iter()
            .map(|event| format!("data: {event}\n\n"))
            .collect();
        let body = body.replace("data: X\n", "");
        let endpoint = Endpoint::start([stream(body)]);
        let home = Home::new(&endpoint);
        let output = home.ask("Go").expect_code(0);
        assert_eq!(output.stdout, "Hello.\n", "{events:?}");
        let parse = |text: &str| serde_json::from_str::<Value>(text).unwrap();
        let (shown, items) = kept(&home).remove(0);
        assert_eq!(shown, "Hello.");
        let items = items.strip_suffix('}').unwrap();
        assert_eq!(parse(items), parse(&format!("[{expected}]")), "{events:?}");
    }
}

/// The turn ends with the terminal event, though the server keeps the connection open behind it.
#[test]
fn last_event_ends_the_turn_and_not_the_connection() {
    let completed = Reply::new().message("Hello.").completed();
    let failed = Reply::new().failed("server_error", "It broke");
    for (answer, code) in [(completed, 0), (failed, 1)] {
        let mut answer = answer;
        answer.pieces.push(Piece::AwaitClose);
        let endpoint = Endpoint::start([answer]);
        let home = Home::new(&endpoint);
        home.ask("Go").expect_code(code);
        endpoint.wait_for_closed(1);
    }
}

/// Streams of real servers, or in their ways, served whole and byte by byte: what is shown, kept and
/// said is the same both times, and their commands wait for a person.
#[test]
fn streams_of_real_servers_are_the_same_byte_by_byte() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/sse");
    let mut names: Vec<String> = fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter_map(|name| Some(name.strip_suffix(".sse")?.to_owned()))
        .collect();
    names.sort();
    assert!(names.len() > 15, "{names:?}");
    for name in names {
        let body = fs::read(folder.join(format!("{name}.sse"))).unwrap();
        let whole = run_fixture(stream(&*body));
        assert_eq!(run_fixture(stream(body).byte_by_byte()), whole, "{name}");
        // Which of them are an answer, ask for a command (which nobody can approve), or fail.
        let fails = [
            "azure-failed",
            "ollama-cut",
            "openai-error",
            "openai-incomplete",
            "openrouter-error",
            "sglang-generic-output",
        ];
        let code = match &*name {
            failing if fails.contains(&failing) => 1,
            "codex-empty-output" | "vllm-two-calls" => 3,
            calling if calling.ends_with("-tool-call") => 3,
            _ => 0,
        };
        assert_eq!(whole.0, code, "{name}: {whole:?}");
    }
}

/// The exit code, both outputs, and what was kept, but for what differs from run to run.
fn run_fixture(answer: Answer) -> (i32, String, String, Vec<(String, String)>, Vec<String>) {
    let mut answer = Some(answer);
    let endpoint = Endpoint::scripted(move |request| match request.results().as_slice() {
        [] => answer.take(),
        _ => Some(
            Reply::new()
                .item(r#"{"type":"message","role":"assistant","content":"Done."}"#)
                .completed(),
        ),
    });
    let home = Home::new(&endpoint);
    let output = home.ask("Go");
    assert!(home.work_files().is_empty() && home.records_of("tool_start").is_empty());
    (
        output.code,
        output.stdout,
        home.tidied(&output.stderr),
        kept(&home),
        home.kinds(),
    )
}

// --- what can't be used -------------------------------------------------------------------------

/// Some servers end a stream in good order, with status 200 and without a last event, and clients
/// took what they had for the whole. A stream is cut here behind each of its events and in the
/// middle of each: it is said to be cut, what was shown stays on the screen and nowhere else, and
/// the command that had come in full is not even asked about.
#[test]
fn stream_cut_anywhere_is_never_an_answer() {
    let whole = events(
        Reply::new()
            .reasoning("c2VjcmV0==")
            .message("One two.")
            .bash("call_1", "touch ran")
            .completed(),
    );
    let ends: Vec<usize> = whole.match_indices("\n\n").map(|(at, _)| at + 2).collect();
    assert!(ends.len() > 12, "{whole}");
    let mut cuts: Vec<usize> = ends[..ends.len() - 1].to_vec();
    // In the middle of each event but the first, which would be a cut before any event.
    cuts.extend(ends.windows(2).map(|pair| (pair[0] + pair[1]) / 2));
    let answers = cuts.iter().enumerate().map(|(number, cut)| {
        let mut pieces = vec![Piece::text(&whole[..*cut])];
        // By an orderly end, by the end of the connection, and by its reset.
        match number % 4 {
            0 => {}
            1 => pieces.push(Piece::Cut),
            2 => return Answer::stream(pieces).framed(Framing::Close),
            _ => pieces.extend([Piece::text(": x\n"), Piece::Cut]),
        }
        Answer::stream(pieces)
    });
    let endpoint = Endpoint::start(answers.collect::<Vec<_>>());
    let home = Home::new(&endpoint);
    let output = chat(&home, cuts.len()).expect_code(1);
    endpoint.assert_all_used();
    assert_eq!(output.stderr, CUT.repeat(cuts.len()));
    assert!(!output.stdout.contains(QUESTION));
    assert!(home.work_files().is_empty());
    assert_eq!(
        home.kinds(),
        ["user_message", "turn_end"].repeat(cuts.len())
    );
    assert_eq!(home.turn_ends(), vec!["failed"; cuts.len()]);
    for (shown, cut) in output.stdout.split("You> Go\n").skip(1).zip(&cuts) {
        let came = |delta: &str| {
            whole[..*cut].contains(&format!(
                "{delta}\",\"logprobs\":[],\"obfuscation\":\"x9\"}}\n\n"
            ))
        };
        let expected = match (came("\"One "), came("\"two.")) {
            (true, true) => "Assistant> One two.\n",
            (true, false) => "Assistant> One \n",
            _ => "",
        };
        let shown = shown.trim_end_matches("You> \nGoodbye.\n");
        assert_eq!(shown, expected, "cut at {cut}");
    }
    // Nothing of it is ever sent.
    for request in endpoint.requests() {
        assert_eq!(request.input().len(), 1);
    }
}

/// Failures were read as empty answers, and the exit code was 0. Each kind fails here, with its own
/// words, the server's code and message among them; and the text that came before stays visible.
#[test]
fn each_failure_in_a_stream_has_words_of_its_own() {
    let ask_again = "; ask again.\n";
    let hint = "hint: What was shown of it is not part of the conversation.\n";
    let half = || Reply::new().delta("Half an answer.");
    let failed = |error: &str| {
        let fields = format!(r#""response":{{"status":"failed","error":{error}}}"#);
        half().event("response.failed", &fields).cut()
    };
    let untyped = |data: &str| half().piece(Piece::text(format!("data: {data}\n\n"))).cut();
    let server_failed = "mino: The server failed while it answered";
    let incomplete = "mino: The answer is incomplete: ";
    for (answer, message) in [
        (
            failed(r#"{"code":"server_error","message":"It broke."}"#),
            format!("{server_failed} (server_error: It broke){ask_again}"),
        ),
        (failed("null"), format!("{server_failed}{ask_again}")),
        (
            failed(r#"{"code":"insufficient_quota","message":"Pay"}"#),
            format!("{server_failed} (insufficient_quota: Pay); check the plan and the billing of the account.\n"),
        ),
        (
            failed(r#"{"code":"cyber_policy","message":"No"}"#),
            "mino: The server says that the provider's rules forbid the request (cyber_policy: No); ask something else.\n".into(),
        ),
        (error_flat("overloaded", "Flat"), format!("{server_failed} (overloaded: Flat){ask_again}")),
        (error_nested("overloaded", "Nested"), format!("{server_failed} (overloaded: Nested){ask_again}")),
        (
            untyped(r#"{"error":{"code":502,"message":"Upstream"}}"#),
            format!("{server_failed} (Upstream){ask_again}"),
        ),
        (untyped(r#"{"error":"In one word"}"#), format!("{server_failed} (In one word){ask_again}")),
        (
            half().incomplete("max_output_tokens"),
            format!("{incomplete}it reached the output limit (max_output_tokens); ask for a shorter one.\n{hint}"),
        ),
        (
            half().incomplete("content_filter"),
            format!("{incomplete}a filter stopped it (content_filter); ask something else.\n{hint}"),
        ),
        (
            half().event("response.incomplete", r#""response":{"incomplete_details":null}"#).cut(),
            format!("{incomplete}the server stopped it{ask_again}{hint}"),
        ),
        // Its own status is believed.
        (
            half().event("response.completed", r#""response":{"status":"incomplete","output":[]}"#).cut(),
            format!("{incomplete}the server stopped it{ask_again}{hint}"),
        ),
        (
            half().event("response.completed", r#""response":{"status":"queued"}"#).cut(),
            format!("mino: The server's answer can't be used: its status is \"queued\"{ask_again}"),
        ),
        (half().cut(), CUT.into()),
        (half().piece(Piece::text("data: [DONE]\n\n")).completed(), CUT.into()),
    ] {
        let shows = answer.body().windows(4).any(|part| part == b"Half");
        let endpoint = Endpoint::start([answer]);
        let home = Home::new(&endpoint);
        let output = home.ask("Go").expect_code(1);
        assert_eq!(output.stderr, message);
        assert_eq!(output.stdout, if shows { "Half an answer." } else { "" });
        assert_eq!(home.kinds(), ["user_message", "turn_end"]);
        assert_eq!(home.turn_ends(), ["failed"]);
        endpoint.assert_all_used();
    }
}

/// Strict parsers died of a `null` where they knew an object, or skipped what they could not read,
/// the end of the answer included. What is unknown, absent or null passes; what is known and can't
/// be read ends the turn, with a message.
#[test]
fn unknown_events_pass_and_known_ones_must_make_sense() {
    let passes = [
        r#"{"type":"response.created","response":null}"#,
        r#"{"type":"response.in_progress"}"#,
        r#"{"type":"response.output_text.delta","delta":"","logprobs":null,"output_index":null}"#,
        r#"{"type":"response.output_text.done","text":7}"#,
        r#"{"type":"response.output_item.added","item":null}"#,
        r#"{"type":"response.output_item.done","item":{"type":"web_search_call","id":null,"status":"failed"},"output_index":"x"}"#,
        r#"{"type":"response.output_item.done","item":{"type":"brand_new","arguments":{"deep":[[[]]]}}}"#,
        r#"{"type":"response.function_call_arguments.delta","delta":{"no":"string"}}"#,
        r#"{"type":"response.metadata","error":null}"#,
        r#"{"type":null,"error":null}"#,
        r#"{"no":"type"}"#,
        r#""a word""#,
        "null",
        "[1, 2]",
        "keep-alive",
        "",
    ];
    let answers = passes.iter().map(|event| {
        let piece = Piece::text(format!("data: {event}\n\n"));
        Reply::new().piece(piece).message("Fine.").completed()
    });
    let endpoint = Endpoint::start(answers.collect::<Vec<_>>());
    let home = Home::new(&endpoint);
    let output = chat(&home, passes.len()).expect_code(0);
    assert_eq!(output.stderr, "");
    assert_eq!(
        output.stdout.matches("Assistant> Fine.\n").count(),
        passes.len(),
        "{output}"
    );

    let no_json = "it holds an event that is no JSON";
    let without = |field: &str| format!("it holds an event without its {field}");
    let faults = [
        (
            "{\"type\":\"response.output_text.delta\",\"delta\":\"Ha",
            no_json.to_owned(),
        ),
        ("{nonsense}", no_json.into()),
        (
            "{\"type\":\"x\",\"type\":\"response.completed\"}",
            no_json.into(),
        ),
        (
            "X\nevent: response.completed\ndata: garbage",
            no_json.into(),
        ),
        (r#"{"type":"response.output_text.delta"}"#, without("delta")),
        (
            r#"{"type":"response.output_text.delta","delta":null}"#,
            without("delta"),
        ),
        (
            r#"{"type":"response.output_text.delta","delta":7}"#,
            without("delta"),
        ),
        (
            r#"{"type":"response.refusal.delta","delta":{}}"#,
            without("delta"),
        ),
        (r#"{"type":"response.output_item.done"}"#, without("item")),
        (r#"{"type":"response.completed"}"#, without("response")),
        (
            r#"{"type":"response.completed","response":null}"#,
            without("response"),
        ),
        (
            r#"{"type":"response.completed","response":"ok"}"#,
            without("response"),
        ),
        (
            r#"{"type":"response.completed","response":{}}"#,
            "it says no status".into(),
        ),
        (
            r#"{"type":"response.completed","response":{"status":"completed"}}"#,
            "it holds neither text nor a tool call".into(),
        ),
        (
            r#"{"type":"response.completed","response":{"status":"completed","output":{}}}"#,
            "its output has no list of at most 1024 values".into(),
        ),
        (
            r#"{"type":"response.completed","response":{"status":"completed","output":["x"]}}"#,
            "item 1 is not an item".into(),
        ),
        (
            r#"{"type":"response.completed","response":{"status":"completed","output":[{"type":"custom_tool_call","call_id":"c","name":"n","input":""}]}}"#,
            "item 1 is a \"custom_tool_call\", which Mino can't answer".into(),
        ),
        (
            r#"{"type":"response.completed","response":{"status":"completed","output":[{"type":"message","role":"user","content":"Hi"}]}}"#,
            "item 1 is a message that is not the assistant's".into(),
        ),
        (
            r#"{"type":"response.completed","response":{"status":"completed","output":[{"type":"function_call","status":"incomplete","call_id":"c","name":"bash","arguments":"{\"command\":\"touch ran\"}"}]}}"#,
            "item 1 has a status that is not \"completed\"".into(),
        ),
        (
            r#"{"type":"response.completed","response":{"status":"completed","output":[{"type":"function_call","call_id":"c","name":"bash","arguments":{"command":"touch ran"}}]}}"#,
            "item 1 is a tool call without arguments".into(),
        ),
    ];
    let answers = faults.iter().map(|(event, _)| {
        // A good end behind it does not make it good.
        let body = format!("data: {event}\n\n").replace("data: X\n", "");
        let reply = Reply::new().piece(Piece::text(body));
        reply.bash("call_1", "touch ran").completed()
    });
    let endpoint = Endpoint::start(answers.collect::<Vec<_>>());
    let home = Home::new(&endpoint);
    let output = chat(&home, faults.len()).expect_code(1);
    let said: String = faults
        .iter()
        .map(|(_, why)| format!("mino: The server's answer can't be used: {why}; ask again.\n"))
        .collect();
    assert_eq!(output.stderr, said);
    assert_eq!(home.turn_ends(), vec!["failed"; faults.len()]);
    assert!(home.work_files().is_empty());
    endpoint.assert_all_used();
}

/// Half a character is legal in JSON's spelling and is no text: parsers threw away the whole event
/// for it. It costs that character; but a command that is not what the model wrote isn't offered.
#[test]
fn half_a_character_costs_no_event_and_no_command_runs_with_one() {
    let said = r#"{"type":"message","role":"assistant","content":[{"type":"output_text","text":"A \ud83d B"}]}"#;
    let asked = r#"{"type":"function_call","call_id":"call_1","name":"bash","arguments":"{\"command\":\"touch ran\ud83d\"}"}"#;
    let first = Reply::new()
        .event("response.output_text.delta", r#""delta":"A \ud83d B""#)
        .item(said)
        .item(asked)
        .completed();
    let endpoint = Endpoint::start([first, text("I see.")]);
    let home = Home::new(&endpoint);
    let mut tty = home
        .mino(&["ask", "Go"])
        .on_tty(Size { rows: 24, cols: 80 });
    tty.wait_for("A \u{fffd} B");
    tty.wait_for("[Tool result: invalid_arguments]");
    tty.wait_for("I see.");
    assert_eq!(tty.wait_exit(), 0);
    assert!(home.work_files().is_empty());
    assert_eq!(home.result_statuses(), ["invalid_arguments"]);
    assert_eq!(home.records_of("model_response")[0]["text"], "A \u{fffd} B");
    assert!(std::str::from_utf8(&endpoint.wait_for_request(2).body).is_ok());
}

#[test]
fn event_beyond_the_bound_ends_the_turn_and_a_large_one_does_not() {
    const MIB: usize = 1024 * 1024;
    let too_long = [b"data: ".to_vec(), vec![b'x'; 17 * MIB]].concat();
    // Some servers repeat everything in their last event.
    let echo = format!(
        r#""response":{{"echo":{},"status":"completed"}}"#,
        quoted(&"x".repeat(12 * MIB))
    );
    let large = Reply::new()
        .message("Fine.")
        .event("response.completed", &echo)
        .cut();
    let endpoint = Endpoint::start([stream(too_long), large]);
    let home = Home::new(&endpoint);
    let output = chat(&home, 2).expect_code(1);
    assert_eq!(
        output.stderr,
        "mino: The answer is larger than Mino takes (8 MiB of output, 16 MiB an event, 256 MiB in all); ask for less.\n"
    );
    assert!(output.stdout.contains("Assistant> Fine.\n"), "{output}");
    assert_eq!(home.turn_ends(), ["failed", "completed"]);
}

// --- silence ------------------------------------------------------------------------------------

/// A home that gives up after a second of silence.
fn impatient(endpoint: &Endpoint) -> Home {
    let home = Home::new(endpoint);
    home.configure("idle_timeout_seconds", 1);
    home
}

#[test]
fn silence_ends_the_turn_and_says_how_to_wait_longer() {
    let head = Piece::text("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n");
    let mut half = Reply::new().delta("Half ").piece(Piece::AwaitClose).cut();
    half.text.clear();
    let endpoint = Endpoint::start([
        Answer::silence(),
        Answer::raw(vec![head, Piece::AwaitClose]),
        half,
    ]);
    let home = impatient(&endpoint);
    let output = chat(&home, 3).expect_code(1);
    let message = "mino: The server was silent for 1 s; ask again, or raise idle_timeout_seconds in config.json.\n";
    assert_eq!(output.stderr, message.repeat(3));
    assert!(output.stdout.contains("Assistant> Half \n"), "{output}");
    // Asked once each: the server may still be at work.
    endpoint.assert_all_used();
    endpoint.wait_for_closed(3);
    assert_eq!(home.turn_ends(), ["failed"; 3]);
}

/// A slow local server said with comments that it was at work, and was given up for its silence.
/// Comments, heartbeats that nobody knows and single bytes are signs of life.
#[test]
fn comments_and_unknown_events_are_life() {
    let signs = [
        ": thinking\n\n",
        "event: ping\ndata: {}\n\n",
        ":",
        "\n",
        "data: {\"type\":\"x\"}\n\n",
        ": a\n",
    ];
    let mut reply = Reply::new();
    let mut releases: Vec<Release> = Vec::new();
    for sign in signs {
        let (pause, release) = hold();
        reply = reply.piece(pause).piece(Piece::text(sign));
        releases.push(release);
    }
    let endpoint = Endpoint::start([reply.message("At last.").completed()]);
    let home = Home::new(&endpoint);
    home.configure("idle_timeout_seconds", 2);
    let mut asking = home.mino(&["ask", "Go"]).start();
    asking.close_stdin();
    let start = Instant::now();
    for release in releases {
        release.wait_reached();
        // The pace is the subject: slower than all at once, and faster than the limit.
        thread::sleep(Duration::from_millis(400));
        release.release();
    }
    let output = asking.wait().expect_code(0);
    assert!(
        start.elapsed() > Duration::from_secs(2),
        "longer than the limit"
    );
    assert_eq!((&*output.stdout, &*output.stderr), ("At last.\n", ""));
}

// --- trying again -------------------------------------------------------------------------------

fn unavailable() -> Answer {
    http_error("503 Service Unavailable", "server_is_overloaded", "Busy")
        .header("retry-after-ms", "20")
}

const UNAVAILABLE: &str =
    "The server answered 503 (server_is_overloaded: Busy; request req_test_1)";

#[test]
fn transient_failures_are_announced_and_asked_again_unchanged() {
    let endpoint = Endpoint::start([
        unavailable(),
        http_error("429 Too Many Requests", "rate_limit_exceeded", "Slow down")
            .header("Retry-After", "0.05"),
        text("Fine."),
    ]);
    let home = Home::new(&endpoint);
    let output = home.ask("Go").expect_code(0);
    assert_eq!(output.stdout, "Fine.\n");
    assert_eq!(
        output.stderr,
        format!(
            "{UNAVAILABLE}; trying again in 0.1 s (2 of 3).\n\
             The server answered 429 (rate_limit_exceeded: Slow down; request req_test_1); trying again in 0.1 s (3 of 3).\n"
        )
    );
    let requests = endpoint.requests();
    assert!(
        requests
            .iter()
            .all(|request| request.body == requests[0].body)
    );
    assert_eq!(home.kinds(), ["user_message", "model_response", "turn_end"]);
}

#[test]
fn three_tries_are_enough() {
    let endpoint = Endpoint::start([
        unavailable(),
        http_error("408 Request Timeout", "t", "m").header("retry-after-ms", "0"),
        http_error("409 Conflict", "c", "m"),
    ]);
    let home = Home::new(&endpoint);
    let output = home.ask("Go").expect_code(1);
    let last = "mino: The server answered 409 (c: m; request req_test_1); ask again later.\n";
    assert!(output.stderr.ends_with(last), "{output}");
    endpoint.assert_all_used();
    assert_eq!(home.turn_ends(), ["failed"]);
}

/// Nothing had come when the connection broke, so nothing is lost by asking again; what broke off
/// later is never asked again by itself (see the cuts above).
#[test]
fn connection_that_ends_before_the_first_event_is_tried_again() {
    let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n";
    let endpoint = Endpoint::start([
        Answer::raw(vec![]),
        Answer::raw(vec![Piece::text(format!(
            "{head}: hello\n\nevent: response.created\n"
        ))]),
        text("Fine."),
    ]);
    let home = Home::new(&endpoint);
    let start = Instant::now();
    let output = home.ask("Go").expect_code(0);
    // No wait was asked for: one second, then two.
    assert!(start.elapsed() >= Duration::from_secs(3));
    let closed = "The server closed the connection before it answered; trying again in";
    assert_eq!(
        output.stderr,
        format!("{closed} 1 s (2 of 3).\n{closed} 2 s (3 of 3).\n")
    );
    assert_eq!(output.stdout, "Fine.\n");
}

/// A call of a tool that doesn't exist: the turn goes on without a person.
fn step(number: usize) -> Answer {
    Reply::new()
        .call(&format!("call_{number}"), "nonesuch", "{}")
        .completed()
}

#[test]
fn every_request_counts_toward_the_eight() {
    // Six steps, a refusal, and the answer is the eighth request.
    let endpoint = Endpoint::start((1..=6).map(step).chain([unavailable(), text("Fine.")]));
    let home = Home::new(&endpoint);
    home.ask("Go").expect_code(0);
    endpoint.assert_all_used();

    // The eighth is refused: there is no ninth to try again with.
    let endpoint = Endpoint::start((1..=7).map(step).chain([unavailable()]));
    let home = Home::new(&endpoint);
    let output = home.ask("Go").expect_code(1);
    assert!(
        output
            .stderr
            .ends_with(&format!("mino: {UNAVAILABLE}; ask again later.\n")),
        "{output}"
    );
    assert_eq!(home.turn_ends(), ["failed"]);
    endpoint.assert_all_used();

    // The eighth, a repeated one, asks for more.
    let endpoint = Endpoint::start((1..=6).map(step).chain([unavailable(), step(7)]));
    let home = Home::new(&endpoint);
    let output = home.ask("Go").expect_code(1);
    assert!(
        output.stderr.ends_with("mino: Tool limit reached.\n"),
        "{output}"
    );
    assert_eq!(home.result_statuses()[6], "not_executed");
    endpoint.assert_all_used();
}

#[test]
fn wait_that_a_server_asks_for_is_kept_up_to_a_minute() {
    for (header, value, words) in [
        ("Retry-After", "0", "trying again in 0 s (2 of 3)"),
        ("Retry-After", "1", "trying again in 1 s (2 of 3)"),
        ("retry-after-ms", "130.5", "trying again in 0.2 s (2 of 3)"),
        (
            "Retry-After",
            "Sun, 06 Nov 1994 08:49:37 GMT",
            "trying again in 0 s (2 of 3)",
        ),
        // Not understood: as if it weren't there.
        ("Retry-After", "soon", "trying again in 1 s (2 of 3)"),
    ] {
        let refused = http_error("429 Too Many Requests", "c", "m").header(header, value);
        let endpoint = Endpoint::start([refused, text("Fine.")]);
        let home = Home::new(&endpoint);
        let output = home.ask("Go").expect_code(0);
        assert!(output.stderr.contains(words), "{value}: {output}");
    }
    // The finer one counts where both are there.
    let both = http_error("503 X", "c", "m")
        .header("Retry-After", "50")
        .header("retry-after-ms", "1");
    let endpoint = Endpoint::start([both, text("Fine.")]);
    Home::new(&endpoint).ask("Go").expect_code(0);
    // Longer than a minute: it isn't begun.
    for value in ["61", "Fri, 31 Dec 2100 23:59:59 GMT"] {
        let refused = http_error("429 Too Many Requests", "c", "m").header("Retry-After", value);
        let endpoint = Endpoint::start([refused]);
        let home = Home::new(&endpoint);
        let output = home.ask("Go").expect_code(1);
        let said = &output.stderr;
        assert!(
            said.contains("; it asks to wait ") && said.ends_with(" s, so ask again then.\n"),
            "{output}"
        );
        endpoint.assert_all_used();
    }
}

/// A missing key was answered with twenty seconds of reconnecting. What can't succeed is asked
/// once, and the one line has the status, the server's words, its number for the request, and what
/// to do.
#[test]
fn what_cannot_succeed_is_asked_once() {
    let billing = "check the plan and the billing of the account";
    let other = "check base_url and model, or start a new conversation with /new (mino ask --new)";
    let quota = |code: &str| {
        (
            http_error("429 Too Many Requests", code, "m"),
            format!("429 ({code}: m; request req_test_1); {billing}"),
        )
    };
    let by_type =
        r#"{"error":{"message":"m","type":"insufficient_quota","param":null,"code":null}}"#;
    let refused = |status: &str, advice: &str| {
        let number = status.split(' ').next().unwrap();
        (
            http_error(status, "c", "m."),
            format!("{number} (c: m; request req_test_1); {advice}"),
        )
    };
    let endpoint = Endpoint::start([]);
    let home = Home::new(&endpoint);
    let url = format!("\"{}/responses\"", endpoint.base_url());
    let cases = [
        quota("insufficient_quota"),
        quota("credit_balance_exhausted"),
        quota("organization_spend_limit_exceeded"),
        quota("project_spend_limit_exceeded"),
        quota("organization_usage_limit_exceeded"),
        (
            Answer::http("429 Too Many Requests", "application/json", by_type),
            format!("429 (insufficient_quota: m); {billing}"),
        ),
        refused("400 Bad Request", other),
        refused("402 Payment Required", billing),
        refused(
            "403 Forbidden",
            "check what the account and its API key may use",
        ),
        refused(
            "404 Not Found",
            &format!("check the model and base_url: the request went to {url}"),
        ),
        refused("422 Unprocessable", other),
    ];
    let count = cases.len();
    let mut expected = String::new();
    for (answer, line) in cases {
        endpoint.push(answer);
        expected.push_str(&format!("mino: The server answered {line}.\n"));
    }
    let output = chat(&home, count).expect_code(1);
    assert_eq!(output.stderr, expected);
    assert_eq!(endpoint.requests().len(), count);
}

/// A login page behind a proxy was reported as "invalid header value". What came is said: status,
/// type, and the beginning of it in clean characters.
#[test]
fn what_is_no_stream_is_named_for_what_it_is() {
    let page = "<!DOCTYPE html>\n<title>Log\u{1b}[2J in</title>";
    let base = "check base_url, which usually ends in /v1";
    let other = "check base_url and model, or start a new conversation with /new (mino ask --new)";
    let json = "application/json";
    let gateway = Answer::http("502 Bad Gateway", "text/html", page).header("retry-after-ms", "0");
    let untyped = |body: &str| {
        let mut answer = Answer::http("200 OK", "", body);
        answer.headers.clear();
        answer
    };
    let cases = [
        (
            Answer::http("200 OK", "text/html; charset=utf-8", page),
            format!("The server answered 200 with \"text/html; charset=utf-8\" and no event stream (<!DOCTYPE html> <title>Log[2J in</title>); {base}."),
        ),
        (
            Answer::http("200 OK", json, r#"{"error":"x"}"#),
            format!("The server answered 200 with \"application/json\" and no event stream (x); {base}."),
        ),
        (
            untyped(r#"{"error":{"message":"m","code":"c"}}"#),
            format!("The server answered 200 with no content type and no event stream (c: m); {base}."),
        ),
        (
            Answer::http("400 Bad Request", json, r#"{"detail":"Unsupported value: y"}"#),
            format!("The server answered 400 (Unsupported value: y); {other}."),
        ),
        (
            Answer::http("400 Bad Request", json, r#"{"error_code":"BAD_REQUEST","message":"m"}"#),
            format!("The server answered 400 (BAD_REQUEST: m); {other}."),
        ),
        (
            Answer::http("400 Bad Request", json, r#"{"error":{"code":400,"message":"m","type":"t"}}"#),
            format!("The server answered 400 (t: m); {other}."),
        ),
        (
            Answer::http("400 Bad Request", json, ""),
            format!("The server answered 400; {other}."),
        ),
        (
            Answer::http("400 Bad Request", "text/plain", vec![b'a', 0xff, 7, b'b']),
            format!("The server answered 400 (a\u{fffd}b); {other}."),
        ),
        (
            Answer::http("400 Bad Request", "text/plain", "é".repeat(2_000)),
            format!("The server answered 400 ({}…); {other}.", "é".repeat(500)),
        ),
        (
            text("x").header("Content-Encoding", "gzip"),
            "The server sent a compressed answer (gzip), which can't be read; turn compression off there or in the proxy.".into(),
        ),
    ];
    let count = cases.len();
    let (answers, lines): (Vec<_>, Vec<_>) = cases.into_iter().unzip();
    let endpoint = Endpoint::start(answers);
    let home = Home::new(&endpoint);
    let output = chat(&home, count).expect_code(1);
    let said: String = lines.iter().map(|line| format!("mino: {line}\n")).collect();
    assert_eq!(output.stderr, said);
    endpoint.assert_all_used();

    // A gateway's page is tried again, and then shown.
    let endpoint = Endpoint::start([gateway, text("Fine.")]);
    let output = Home::new(&endpoint).ask("Go").expect_code(0);
    assert_eq!(
        output.stderr,
        "The server answered 502 (<!DOCTYPE html> <title>Log[2J in</title>); trying again in 0 s (2 of 3).\n"
    );
}

#[test]
fn content_type_of_a_stream_is_not_taken_too_seriously() {
    let types = [
        "text/event-stream",
        "text/event-stream;charset=UTF-8",
        "TEXT/EVENT-STREAM",
        "text/plain",
        "application/octet-stream",
        "",
    ];
    let answers = types.map(|media_type| {
        let mut answer = text("Fine.");
        answer.headers.clear();
        match media_type {
            "" => answer,
            media_type => answer.header("Content-Type", media_type),
        }
    });
    let endpoint = Endpoint::start(answers);
    let output = chat(&Home::new(&endpoint), types.len()).expect_code(0);
    assert_eq!(
        output.stdout.matches("Assistant> Fine.\n").count(),
        types.len(),
        "{output}"
    );
}

#[test]
fn redirect_is_named_and_not_followed() {
    let elsewhere = Endpoint::start([]);
    let redirect = |status: &str, location: &str| {
        Answer::http(status, "text/plain", "").header("Location", location)
    };
    let url = format!("http://{}/v1/responses", elsewhere.address());
    let endpoint = Endpoint::start([
        redirect("307 Temporary Redirect", &url),
        redirect("301 Moved Permanently", &url),
        redirect("302 Found", "/login"),
    ]);
    let home = Home::new(&endpoint);
    let output = chat(&home, 3).expect_code(1);
    let line = |status: u16, to: &str| {
        format!(
            "mino: The server answered {status} and points to \"{to}\", which is not followed; set base_url to the final address.\n"
        )
    };
    let expected = [
        line(307, "127.0.0.1"),
        line(301, "127.0.0.1"),
        line(302, "/login"),
    ]
    .concat();
    assert_eq!(output.stderr, expected);
    assert!(
        elsewhere.requests().is_empty(),
        "the key has left for another server"
    );
    endpoint.assert_all_used();
}

// --- conversations that go on -------------------------------------------------------------------

/// Where nothing could be left out, a conversation that had grown too long was stuck for good: every
/// message failed, the one to shorten it too. The way on is named, the question is kept, and nothing
/// is asked twice. Each server has its own words for it.
#[test]
fn conversation_too_long_names_the_way_on() {
    let too_long = "that the conversation is too long for the model";
    let way_on = "start a new one with /new (mino ask --new)";
    let said = |code: &str, message: &str| {
        let answer = http_error("400 Bad Request", code, message);
        (
            answer,
            format!(
                "The server says (400) {too_long} ({code}: {message}; request req_test_1); {way_on}."
            ),
        )
    };
    let cases = [
        said(
            "context_length_exceeded",
            "Your input exceeds the context window of this model",
        ),
        said(
            "invalid_request_error",
            "the request exceeds the available context size (4096)",
        ),
        said(
            "c",
            "The number of tokens to keep is greater than the context length",
        ),
        said(
            "invalid_prompt",
            "This endpoint's maximum context length is 8192 tokens",
        ),
        said("c", "This model's maximum prompt length is 131072"),
        (
            Reply::new().failed("context_length_exceeded", "m"),
            format!("The server says {too_long} (context_length_exceeded: m); {way_on}."),
        ),
    ];
    let count = cases.len();
    let (answers, lines): (Vec<_>, Vec<_>) = cases.into_iter().unzip();
    let endpoint = Endpoint::start(answers);
    let home = Home::new(&endpoint);
    let output = chat(&home, count).expect_code(1);
    let expected: String = lines.iter().map(|line| format!("mino: {line}\n")).collect();
    assert_eq!(output.stderr, expected);
    endpoint.assert_all_used();
    assert_eq!(home.records_of("user_message").len(), count);

    // A server with little room, and the way on.
    let endpoint = Endpoint::scripted(|request| {
        Some(match request.body.len() {
            ..=6_000 => Reply::new().message(&"long ".repeat(300)).completed(),
            _ => http_error("400 Bad Request", "context_length_exceeded", "Too long"),
        })
    });
    let home = Home::new(&endpoint);
    let lines = "Go\n".repeat(4) + "/new\nGo\n";
    let output = home.mino::<&str>(&[]).run(lines).expect_code(1);
    let refused = output.stderr.matches(way_on).count();
    assert!((1..4).contains(&refused), "{output}");
    let after = output.stdout.rsplit("You> /new").next().unwrap();
    assert!(after.contains("Assistant> long"), "{output}");
}

/// Each request begins with the whole of the one before and nothing around it changes, over turns
/// with calls, after turns that failed, and in another process: a provider's cache keeps its worth.
#[test]
fn requests_only_ever_grow() {
    let thought = |number: usize| Reply::new().reasoning(&format!("c2VjcmV0{number}=="));
    let answers = [
        thought(1).message("One.").completed(),
        thought(2)
            .call("call_1", "nonesuch", "{ \"a\": 1 }")
            .completed(),
        thought(3)
            .call("call_1b", "nonesuch", "{}")
            .call("call_2", "bash", "{}")
            .completed(),
        thought(4)
            .message_in_phase("Two.", Some("final_answer"))
            .completed(),
        thought(5).call("call_1", "nonesuch", "{}").completed(),
        Reply::new()
            .delta("Half ")
            .failed("server_error", "It broke"),
        thought(6).message("Four.").completed(),
        thought(7).message("Five.").completed(),
    ];
    let endpoint = Endpoint::start(answers);
    let home = Home::new(&endpoint);
    chat(&home, 4).expect_code(1);
    chat(&home, 1).expect_code(0);
    endpoint.assert_all_used();
    let requests = endpoint.requests();
    // Of the failed turn (the fifth and sixth request) nothing is kept.
    let sequence: Vec<&Request> = [0, 1, 2, 3, 6, 7].map(|at| &requests[at]).into();
    for pair in sequence.windows(2) {
        let before = pair[0].input_text().strip_suffix(']').unwrap();
        assert!(pair[1].input_text().starts_with(before));
        assert_eq!(pair[0].around_input(), pair[1].around_input());
    }
    let before = requests[3].input_text().strip_suffix(']').unwrap();
    for failed in &requests[4..6] {
        assert!(failed.input_text().starts_with(before));
    }
    let lengths: Vec<usize> = requests
        .iter()
        .map(|request| request.input().len())
        .collect();
    assert_eq!(lengths, [1, 4, 7, 12, 15, 18, 15, 18]);
}

/// A refusal of one field, as OpenAI's servers word it.
fn unknown_parameter(param: &str) -> Answer {
    let message = quoted(&format!("Unknown parameter: '{param}'."));
    let param = quoted(param);
    let body = format!(
        r#"{{"error":{{"message":{message},"type":"invalid_request_error","param":{param},"code":"unknown_parameter"}}}}"#
    );
    Answer::http("400 Bad Request", "application/json", body)
}

/// A field that one server wants and another refuses made either the answers worse or every request
/// fail for good. It is left out once it has been refused, which is said, and only for this run.
#[test]
fn refused_field_is_left_out_for_the_rest_of_the_run() {
    for (field, words) in [
        (
            "include",
            "The server does not know \"include\"; going on without it.\n",
        ),
        (
            "parallel_tool_calls",
            "The server does not know \"parallel_tool_calls\"; going on without it.\n",
        ),
    ] {
        let endpoint = Endpoint::scripted(move |request| {
            Some(match request.json().get(field) {
                Some(_) => unknown_parameter(field),
                None => text("Fine."),
            })
        });
        let home = Home::new(&endpoint);
        let output = chat(&home, 3).expect_code(0);
        assert_eq!(output.stderr, words);
        assert_eq!(home.turn_ends(), ["completed"; 3]);
        // The next run does not know of it, since it may be another server's.
        assert_eq!(home.ask("Go").expect_code(0).stderr, words);
        let requests = endpoint.requests();
        let has: Vec<bool> = requests
            .iter()
            .map(|r| r.json().get(field).is_some())
            .collect();
        assert_eq!(has, [true, false, false, false, true, false]);
        let (mut full, reduced) = (requests[0].json(), requests[1].json());
        full.as_object_mut().unwrap().remove(field);
        assert_eq!(full, reduced, "nothing else is missing");
    }
}

/// The phase of a message is sent back exactly as it came: dropped, it cost quality; kept, it killed
/// the conversation on servers that don't know it. A commentary is no end: the call behind it counts.
#[test]
fn phase_is_kept_until_a_server_refuses_it() {
    let answers = || {
        let null = r#"{"type":"message","id":"msg_null","role":"assistant","status":"completed","phase":null,"content":[{"type":"output_text","text":"b"}]}"#;
        [
            Reply::new()
                .message_in_phase("a", Some("commentary"))
                .call("call_1", "nonesuch", "{}")
                .completed(),
            Reply::new().item(null).message("c").completed(),
            Reply::new()
                .message_in_phase("d", Some("final_answer"))
                .completed(),
            text("e"),
        ]
    };
    // One that knows it.
    let all = answers();
    let items: Vec<String> = all[..3]
        .iter()
        .flat_map(|answer| answer.items.clone())
        .collect();
    let endpoint = Endpoint::start(all);
    let home = Home::new(&endpoint);
    chat(&home, 3).expect_code(0);
    let input = endpoint.wait_for_request(4).input();
    for item in &items {
        assert!(input.contains(item), "{item} is not among\n{input:#?}");
    }

    // One that doesn't, and takes null for it as well as for nothing.
    let mut left = answers().into_iter();
    let endpoint = Endpoint::scripted(move |request| {
        let input = request.input_values();
        let place = input.iter().position(|item| item.get("phase").is_some());
        match place {
            Some(place) => Some(unknown_parameter(&format!("input[{place}].phase"))),
            None => left.next(),
        }
    });
    let home = Home::new(&endpoint);
    let output = chat(&home, 3).expect_code(0);
    let words = "The server does not know the \"phase\" of messages; going on without it.\n";
    assert_eq!(output.stderr, words);
    let requests = endpoint.requests();
    assert_eq!(requests.len(), 5);
    // Nothing else is missing.
    let without = |request: &Request| {
        let mut input = request.input_values();
        for item in &mut input {
            item.as_object_mut().unwrap().remove("phase");
        }
        input
    };
    assert_eq!(without(&requests[1]), requests[2].input_values());
    assert_eq!(home.turn_ends(), ["completed"; 3]);
}

#[test]
fn refusal_that_cannot_be_helped_is_final() {
    // Refused again without it; and a field that is needed.
    let endpoint = Endpoint::start([
        unknown_parameter("include"),
        unknown_parameter("include"),
        unknown_parameter("tools"),
        http_error(
            "403 Forbidden",
            "unknown_parameter",
            "Unknown parameter: 'parallel_tool_calls'.",
        ),
        http_error("400 Bad Request", "invalid_encrypted_content", "m"),
        http_error("400 Bad Request", "invalid_encrypted_content", "m"),
        text("Fine."),
    ]);
    let home = Home::new(&endpoint);
    let output = chat(&home, 5).expect_code(1);
    assert_eq!(
        output
            .stderr
            .matches("mino: The server answered 40")
            .count(),
        4,
        "{output}"
    );
    assert_eq!(
        output.stderr.matches("going on without").count(),
        2,
        "{output}"
    );
    endpoint.assert_all_used();
}

/// A server that checks what it is sent, as the strictest do: a reasoning item and the item that it
/// led to go together or not at all, calls and results pair, arguments are JSON, and reasoning is
/// readable with the key of the day.
struct Strict {
    /// Item to the reasoning before it.
    pairs: HashMap<String, String>,
    key: &'static str,
}

impl Strict {
    /// Gives `answers`; `known` are all that were ever given, these included.
    fn start(known: &[Answer], answers: Vec<Answer>, key: &'static str) -> Endpoint {
        let mut pairs = HashMap::new();
        for answer in known.iter().chain(&answers) {
            let parse = |item: &String| serde_json::from_str(item).unwrap();
            let items: Vec<Value> = answer.items.iter().map(parse).collect();
            for pair in items
                .windows(2)
                .filter(|pair| pair[0]["type"] == "reasoning")
            {
                pairs.insert(id(&pair[1]), id(&pair[0]));
            }
        }
        let mut answers = answers.into_iter();
        let server = Strict { pairs, key };
        Endpoint::scripted(move |request| match server.check(&request.input_values()) {
            Ok(()) => answers.next(),
            Err((code, message)) => Some(http_error("400 Bad Request", code, &message)),
        })
    }

    fn check(&self, input: &[Value]) -> Result<(), (&'static str, String)> {
        let fault = |message: String| Err(("invalid_request_error", message));
        for (at, item) in input.iter().enumerate() {
            let before = at.checked_sub(1).map(|at| id(&input[at]));
            let after = input.get(at + 1).map(id);
            match item["type"].as_str() {
                Some("reasoning") => {
                    let content = item["encrypted_content"].as_str().unwrap_or_default();
                    if content.is_empty() {
                        return fault(format!("Item with id '{}' not found.", id(item)));
                    }
                    if !content.starts_with(self.key) {
                        return Err((
                            "invalid_encrypted_content",
                            "It could not be verified.".into(),
                        ));
                    }
                    if after.and_then(|after| self.pairs.get(&after)) != Some(&id(item)) {
                        return fault(format!(
                            "Item '{}' of type 'reasoning' was provided without its required following item.",
                            id(item)
                        ));
                    }
                }
                Some("function_call") => {
                    let (call_id, arguments) =
                        (&item["call_id"], item["arguments"].as_str().unwrap());
                    let is_output = |other: &&Value| {
                        other["type"] == "function_call_output" && other["call_id"] == *call_id
                    };
                    if input[at..].iter().find(is_output).is_none() {
                        return fault(format!("No tool output found for function call {call_id}."));
                    }
                    if serde_json::from_str::<Value>(arguments).is_err() {
                        return fault(format!(
                            "failed to parse function call arguments {arguments}"
                        ));
                    }
                }
                Some("function_call_output") => {
                    let is_call = |other: &Value| {
                        other["type"] == "function_call" && other["call_id"] == item["call_id"]
                    };
                    if !input[..at].iter().any(is_call) {
                        return fault(format!(
                            "No tool call found for function call output {}.",
                            item["call_id"]
                        ));
                    }
                }
                _ => {}
            }
            if let Some(required) = self
                .pairs
                .get(&id(item))
                .filter(|required| before.as_ref() != Some(*required))
            {
                return fault(format!(
                    "Item '{}' was provided without its required 'reasoning' item: '{required}'.",
                    id(item)
                ));
            }
        }
        Ok(())
    }
}

fn id(item: &Value) -> String {
    item["id"].as_str().unwrap_or_default().to_owned()
}

#[test]
fn strict_server_is_satisfied_turn_after_turn() {
    let thought = |content: &str| Reply::new().reasoning(&format!("monday-{content}"));
    let hollow = r#"{"type":"reasoning","id":"rs_hollow","summary":[],"encrypted_content":""}"#;
    let answers = vec![
        thought("a").message("One.").completed(),
        thought("b").call("call_1", "nonesuch", "{}").completed(),
        thought("c")
            .call("call_2", "bash", "{\"command\":")
            .completed(),
        thought("d").message("Two.").completed(),
        // Cut behind its reasoning, failed in the middle, and given up on.
        thought("e").cut(),
        thought("f")
            .delta("Half ")
            .failed("server_error", "It broke"),
        thought("g")
            .call("call_3", "nonesuch", "{}")
            .incomplete("max_output_tokens"),
        // A server that keeps its thoughts to itself.
        Reply::new().item(hollow).message("Six.").completed(),
        thought("h").message("Seven.").completed(),
        text("Eight."),
    ];
    let count = answers.len();
    let endpoint = Strict::start(&[], answers, "monday-");
    let home = Home::new(&endpoint);
    let output = chat(&home, 8).expect_code(1);
    assert_eq!(output.stderr.matches("mino: ").count(), 3, "{output}");
    assert!(!output.stderr.contains("answered 400"), "{output}");
    let fine = ["One.", "Two.", "Six.", "Seven.", "Eight."];
    for words in fine {
        assert!(
            output.stdout.contains(&format!("Assistant> {words}\n")),
            "{output}"
        );
    }
    assert_eq!(endpoint.requests().len(), count);
    // What it could read was never left out.
    let last = endpoint.wait_for_request(count).input_values();
    let thoughts = last
        .iter()
        .filter(|item| item["type"] == "reasoning")
        .count();
    assert_eq!(thoughts, 5);
}

/// The key of the day has changed, or the account, or the server: nobody can read the reasoning of
/// the conversation any more, and every request of it would fail. It goes on without.
#[test]
fn reasoning_that_nobody_can_read_any_more_is_left_out_with_its_ids() {
    let thought = |day: &str| Reply::new().reasoning(&format!("{day}-x"));
    let monday = vec![
        thought("monday")
            .call("call_1", "nonesuch", "{}")
            .completed(),
        thought("monday").message("One.").completed(),
    ];
    let tuesday = vec![
        thought("tuesday").message("Two.").completed(),
        thought("tuesday").message("Three.").completed(),
    ];
    // Who gave them and when is the same to the server: it knows all ids.
    let known: Vec<Answer> = monday
        .iter()
        .map(|answer| Answer {
            items: answer.items.clone(),
            ..stream("")
        })
        .collect();
    let monday = Strict::start(&[], monday, "monday-");
    let home = Home::new(&monday);
    chat(&home, 1).expect_code(0);
    let tuesday = Strict::start(&known, tuesday, "tuesday-");
    home.configure("base_url", tuesday.base_url());
    let output = chat(&home, 2).expect_code(0);
    let notice =
        "The server can't read the conversation's reasoning items; going on without them.\n";
    assert_eq!(output.stderr, notice);
    // Refused once; then without, also without Tuesday's own.
    let requests = tuesday.requests();
    assert_eq!(requests.len(), 3);
    for request in &requests[1..] {
        let types: Vec<Value> = request
            .input_values()
            .iter()
            .map(|item| item["type"].clone())
            .collect();
        assert!(!types.contains(&json!("reasoning")), "{types:?}");
        assert_eq!(
            request.results().len(),
            1,
            "calls and results are still there"
        );
    }
    // On disk nothing is lost.
    let items_of = |record: &Value| record["output"].as_array().unwrap().len();
    let kept: Vec<usize> = home
        .records_of("model_response")
        .iter()
        .map(items_of)
        .collect();
    assert_eq!(kept, [2; 4]);
}
