//! Whole turns of the built program: what is asked of the model, word for word, and what is kept.

mod support;

use serde_json::{Value, json};
use support::endpoint::{
    Endpoint, Reply, Request, call, calls, command_arguments, hold, quoted, text,
};
use support::home::{Home, KEY};
use support::read;
use support::tty::{QUESTION, Size};

const SIZE: Size = Size { rows: 24, cols: 80 };

/// A question as it is sent.
fn question(text: &str) -> Value {
    json!({
        "type": "message", "role": "user",
        "content": [{"type": "input_text", "text": text}],
    })
}

/// A result as it is sent; `output` is the exact text of it.
fn result(call_id: &str, output: &str) -> Value {
    json!({"type": "function_call_output", "call_id": call_id, "output": output})
}

/// Each request's `input` begins with the whole of the one before, byte for byte, and nothing
/// around it changes: what a provider has cached stays usable.
#[track_caller]
fn assert_prefix_only_grows(requests: &[Request]) {
    for pair in requests.windows(2) {
        let before = pair[0].input_text().strip_suffix(']').unwrap();
        let after = pair[1].input_text();
        assert!(
            after.starts_with(before),
            "{after}\ndoes not begin with\n{before}"
        );
        assert_eq!(pair[0].around_input(), pair[1].around_input());
    }
}

#[test]
fn text_turn_sends_exactly_these_fields() {
    let endpoint = Endpoint::start([text("Hello there.")]);
    let home = Home::new(&endpoint);
    let output = home.ask("Say hello").expect_code(0);
    assert_eq!(output.stdout, "Hello there.\n");
    endpoint.assert_all_used();

    let request = endpoint.wait_for_request(1);
    assert_eq!(
        (&*request.method, &*request.path),
        ("POST", "/v1/responses")
    );
    let bearer = format!("Bearer {KEY}");
    assert_eq!(request.header("authorization"), Some(&*bearer));
    assert_eq!(request.header("accept"), Some("text/event-stream"));
    assert_eq!(request.header("content-type"), Some("application/json"));
    assert_eq!(request.header("accept-encoding"), None);

    // The words for the model are free; everything else is not.
    let mut body = request.json();
    let words = [
        body["instructions"].take(),
        body["tools"][0]["description"].take(),
    ];
    for text in words {
        assert!(text.as_str().is_some_and(|text| !text.is_empty()));
    }
    let command = &mut body["tools"][0]["parameters"]["properties"]["command"];
    command.as_object_mut().unwrap().remove("description");
    let expected = json!({
        "model": "test-model",
        "instructions": null,
        "input": [question("Say hello")],
        "tools": [{
            "type": "function",
            "name": "bash",
            "description": null,
            "parameters": {
                "type": "object",
                "properties": {"command": {"type": "string"}},
                "required": ["command"],
                "additionalProperties": false,
            },
            "strict": true,
        }],
        "store": false,
        "stream": true,
        "include": ["reasoning.encrypted_content"],
        "parallel_tool_calls": false,
    });
    assert_eq!(body, expected);
}

#[test]
fn instructions_are_the_soul_and_a_paragraph_that_edits_cannot_remove() {
    let endpoint = Endpoint::start([text("a"), text("b")]);
    let home = Home::new(&endpoint);
    let soul_path = home.mino_home.join("SOUL.md");
    home.ask("One").expect_code(0);
    let soul = String::from_utf8(read(&soul_path)).unwrap();
    std::fs::write(&soul_path, "Speak like a pirate.\n").unwrap();
    home.ask("Two").expect_code(0);

    let sent: Vec<String> = endpoint
        .requests()
        .iter()
        .map(|request| request.json()["instructions"].as_str().unwrap().to_owned())
        .collect();
    let fixed = sent[0].strip_prefix(soul.trim()).expect("the soul first");
    let pirate = sent[1].strip_prefix("Speak like a pirate.");
    assert_eq!(pirate.map(str::trim), Some(fixed.trim()));
    for word in ["untrusted", "denied", "did not succeed", "30"] {
        assert!(fixed.contains(word), "{word} is missing in {fixed}");
    }
    assert_eq!(read(&soul_path), b"Speak like a pirate.\n");
}

#[test]
fn text_turn_is_three_records_with_their_fields_in_order() {
    let answer = text("Hello there.");
    let items = answer.items.join(",");
    let endpoint = Endpoint::start([answer]);
    let home = Home::new(&endpoint);
    home.ask("Say \"hello\"").expect_code(0);

    let ends = [
        r#""kind":"user_message","text":"Say \"hello\""}"#.to_owned(),
        format!(r#""kind":"model_response","text":"Hello there.","output":[{items}]}}"#),
        r#""kind":"turn_end","status":"completed"}"#.to_owned(),
    ];
    let (lines, records) = (home.lines(), home.records());
    assert_eq!(lines.len(), ends.len(), "{lines:#?}");
    let turn_id = records[0]["turn_id"].as_str().unwrap();
    assert!(turn_id.len() == 32 && turn_id.bytes().all(|b| b"0123456789abcdef".contains(&b)));
    for (index, (line, end)) in lines.iter().zip(&ends).enumerate() {
        let (seq, time) = (index + 1, records[index]["time"].as_str().unwrap());
        let shape: String = time
            .chars()
            .map(|c| if c.is_ascii_digit() { '0' } else { c })
            .collect();
        assert_eq!(shape, "0000-00-00T00:00:00.000Z");
        assert_eq!(
            *line,
            format!(r#"{{"v":2,"seq":{seq},"time":"{time}","turn_id":"{turn_id}",{end}"#)
        );
    }
}

/// A marker is written by an approved command and read back; its result reaches the model; after
/// a restart the conversation goes on and the old command is not run again.
#[test]
fn one_call_runs_once_and_its_result_is_sent_and_kept() {
    let command = "printf 'proof %s\\n' \"$((6 * 7))\" >> proof; cat proof";
    let first = call("call_1", command);
    let second = text("The proof is 42.");
    let items = [first.items.clone(), second.items.clone()];
    let endpoint = Endpoint::start([first, second, text("It was 42.")]);
    let home = Home::new(&endpoint);

    let mut tty = home.chat();
    tty.send_line("Prove it");
    tty.answer("y");
    tty.wait_for("[Tool result: completed; exit code 0]");
    tty.wait_for("proof 42");
    tty.wait_for("Assistant> ");
    tty.wait_for("The proof is 42.");
    tty.wait_for("You> ");
    tty.send_line("/exit");
    tty.wait_for("Goodbye.");
    assert_eq!(tty.wait_exit(), 0);

    let mut tty = home.chat();
    tty.send_line("What was it?");
    tty.wait_for("It was 42.");
    tty.wait_for("You> ");
    tty.send("\x04");
    tty.wait_for("Goodbye.");
    assert_eq!(tty.wait_exit(), 0);

    assert_eq!(read(home.in_work("proof")), b"proof 42\n", "it ran once");
    endpoint.assert_all_used();
    let requests = endpoint.requests();
    assert_prefix_only_grows(&requests);
    let output = r#"{"status":"completed","output":"proof 42\n","exit_code":0}"#;
    let last = requests[2].input();
    let parse = |item: &String| serde_json::from_str::<Value>(item).unwrap();
    assert_eq!(last.len(), 5, "{last:#?}");
    assert_eq!(parse(&last[0]), question("Prove it"));
    assert_eq!(last[1..2], items[0]);
    assert_eq!(parse(&last[2]), result("call_1", output));
    assert_eq!(last[3..4], items[1]);
    assert_eq!(parse(&last[4]), question("What was it?"));
    assert_eq!(requests[1].input(), last[..3]);

    assert_eq!(
        home.kinds()[..6],
        [
            "user_message",
            "model_response",
            "tool_start",
            "tool_result",
            "model_response",
            "turn_end"
        ]
    );
    let lines = home.lines();
    let start = format!(
        r#""kind":"tool_start","call_id":"call_1","name":"bash","arguments":{},"cwd":{}}}"#,
        quoted(&command_arguments(command)),
        quoted(home.work.to_str().unwrap())
    );
    assert!(lines[2].ends_with(&start), "{}\n{start}", lines[2]);
    let kept = format!(r#""kind":"tool_result","call_id":"call_1","result":{output}}}"#);
    assert!(lines[3].ends_with(&kept), "{}\n{kept}", lines[3]);
}

#[test]
fn several_calls_are_decided_one_by_one_and_answered_in_order() {
    let first = Reply::new()
        .reasoning("gAAAA-opaque")
        .message_in_phase("Three things.", Some("commentary"))
        .bash("call_a", "echo a >> ran; echo a")
        .bash("call_b", "echo b >> ran; echo b")
        .bash("call_c", "echo c >> ran; exit 3")
        .completed();
    let items = first.items.clone();
    let endpoint = Endpoint::start([first, text("Two of three.")]);
    let home = Home::new(&endpoint);

    let mut tty = home.mino(&["ask", "Do three"]).on_tty(SIZE);
    tty.wait_for("Three things.");
    for (shown, answer, outcome) in [
        ("Command: \"echo a", "y", "completed; exit code 0"),
        ("Command: \"echo b", "n", "denied"),
        ("Command: \"echo c", "y", "failed; exit code 3"),
    ] {
        tty.wait_for(shown);
        tty.answer(answer);
        tty.wait_for(&format!("[Tool result: {outcome}]"));
    }
    tty.wait_for("Two of three.");
    assert_eq!(tty.wait_exit(), 0);

    assert_eq!(read(home.in_work("ran")), b"a\nc\n");
    let requests = endpoint.requests();
    assert_prefix_only_grows(&requests);
    let input = requests[1].input();
    assert_eq!(input[1..6], items);
    let results = requests[1].results();
    let of: Vec<(&str, &Value)> = results.iter().map(|(id, r)| (&**id, r)).collect();
    assert_eq!(input.len(), 9);
    assert_eq!(
        of[0],
        (
            "call_a",
            &json!({"status": "completed", "output": "a\n", "exit_code": 0})
        )
    );
    assert_eq!((of[1].0, &of[1].1["status"]), ("call_b", &json!("denied")));
    assert_eq!(of[1].1.get("exit_code"), None);
    assert_eq!(
        of[2],
        (
            "call_c",
            &json!({"status": "failed", "output": "", "exit_code": 3})
        )
    );
    assert_eq!(home.records_of("tool_start").len(), 2);
}

/// Servers add fields and spell things their own way; what they get back must be what they sent.
#[test]
fn items_come_back_byte_for_byte() {
    let odd = r#"{ "type" : "message","id":"msg_odd","role":"assistant","status":"completed","phase":"final_answer", "content":[{"type":"output_text","text":"caf\u00e9 \ud83d\ude42 \/","annotations":[],"x_score":1.50e2}],"x_new":null }"#;
    let unknown = r#"{"type":"x_note","id":"xn_1","data":[1, 2.0,{"b":1,"a":2}]}"#;
    let first = Reply::new()
        .reasoning("c2VjcmV0/+==")
        .item(unknown)
        .delta("café 🙂 /")
        .item(odd)
        .completed();
    let items = first.items.clone();
    let endpoint = Endpoint::start([first, text("b")]);
    let home = Home::new(&endpoint);
    let output = home.ask("One").expect_code(0);
    assert_eq!(output.stdout, "café 🙂 /\n");
    home.ask("Two").expect_code(0);
    let input = endpoint.wait_for_request(2).input();
    assert_eq!(input[1..4], items);
    assert!(items[1] == unknown && items[2] == odd);
    let line = &home.lines()[1];
    assert!(
        line.ends_with(&format!("[{}]}}", items.join(","))),
        "{line}"
    );
}

#[test]
fn text_is_shown_as_it_arrives() {
    let (pause, release) = hold();
    let item = r#"{"id":"msg_1","type":"message","status":"completed","content":[{"type":"output_text","annotations":[],"text":"First second."}],"role":"assistant"}"#;
    let answer = Reply::new()
        .delta("First ")
        .piece(pause)
        .delta("second.")
        .item(item)
        .completed();
    let endpoint = Endpoint::start([answer]);
    let home = Home::new(&endpoint);
    let mut asking = home.mino(&["ask", "Go"]).start();
    asking.close_stdin();
    release.wait_reached();
    asking.wait_for_stdout("First ");
    release.release();
    assert_eq!(asking.wait().expect_code(0).stdout, "First second.\n");
}

#[test]
fn calls_that_cannot_run_become_results_without_a_question() {
    let first = calls(&[
        ("call_a", "bash", "{}"),
        ("call_b", "bash", "{\"command\":"),
        ("call_c", "python", "{\"command\":\"1\"}"),
    ]);
    let items = first.items.clone();
    let endpoint = Endpoint::start([first, text("I see.")]);
    let home = Home::new(&endpoint);
    // Nobody has to be asked, so that it makes no difference that nobody can be.
    let output = home.ask("Go").expect_code(0);
    assert!(!output.stderr.contains(QUESTION), "{output}");

    let statuses = ["invalid_arguments", "invalid_arguments", "unknown_tool"];
    assert_eq!(home.result_statuses(), statuses);
    assert!(home.records_of("tool_start").is_empty());
    let request = endpoint.wait_for_request(2);
    for ((id, result), (want_id, status)) in request
        .results()
        .iter()
        .zip(["call_a", "call_b", "call_c"].iter().zip(statuses))
    {
        assert_eq!((&**id, &result["status"]), (*want_id, &json!(status)));
        assert!(result["output"].as_str().is_some_and(|o| !o.is_empty()));
    }
    let input = request.input();
    assert_eq!((&input[1], &input[3]), (&items[0], &items[2]));
    // Arguments that aren't JSON would make every later request fail on some servers.
    let mended: Value = serde_json::from_str(&input[2]).unwrap();
    assert_eq!(mended["arguments"], "{}");
    assert_eq!(mended["call_id"], "call_b");
}

#[test]
fn eighth_request_is_the_last() {
    let answers = (1..=8).map(|n| call(&format!("call_{n}"), &format!("echo {n} >> ran")));
    let endpoint = Endpoint::start(answers);
    let home = Home::new(&endpoint);
    let mut tty = home.mino(&["ask", "Loop"]).on_tty(SIZE);
    for _ in 1..=7 {
        tty.answer("y");
        tty.wait_for("[Tool result: completed; exit code 0]");
    }
    tty.wait_for("Tool limit reached.");
    assert_eq!(tty.wait_exit(), 1);
    endpoint.assert_all_used();
    assert_eq!(read(home.in_work("ran")), b"1\n2\n3\n4\n5\n6\n7\n");
    assert_eq!(home.records_of("tool_start").len(), 7);
    assert_eq!(home.result_statuses()[6..], ["completed", "not_executed"]);
    assert_eq!(home.turn_ends(), ["failed"]);
}

/// `count` calls of a tool that doesn't exist: nobody has to be asked about them.
fn unknown_calls(first: usize, count: usize) -> Reply {
    (first..first + count).fold(Reply::new(), |reply, n| {
        reply.call(&format!("call_{n}"), "nonesuch", "{}")
    })
}

#[test]
fn batch_that_would_pass_sixteen_calls_is_not_begun() {
    // Seventeen at once.
    let endpoint = Endpoint::start([unknown_calls(1, 17).completed()]);
    let home = Home::new(&endpoint);
    let output = home.ask("Go").expect_code(1);
    assert!(output.stderr.contains("Tool limit reached."), "{output}");
    assert_eq!(home.result_statuses(), vec!["not_executed"; 17]);
    assert_eq!(home.turn_ends(), ["failed"]);

    // Nine, then eight: the first nine have had their results.
    let endpoint = Endpoint::start([
        unknown_calls(1, 9).completed(),
        unknown_calls(10, 8).completed(),
    ]);
    let home = Home::new(&endpoint);
    let output = home.ask("Go").expect_code(1);
    assert!(output.stderr.contains("Tool limit reached."), "{output}");
    let statuses = home.result_statuses();
    assert_eq!(statuses[..9], vec!["unknown_tool"; 9]);
    assert_eq!(statuses[9..], vec!["not_executed"; 8]);

    // Nine, then seven: sixteen are allowed.
    let endpoint = Endpoint::start([
        unknown_calls(1, 9).completed(),
        unknown_calls(10, 7).completed(),
        text("Enough."),
    ]);
    let home = Home::new(&endpoint);
    assert_eq!(home.ask("Go").expect_code(0).stdout, "Enough.\n");
    assert_eq!(home.result_statuses(), vec!["unknown_tool"; 16]);
}

#[test]
fn failed_turn_stays_on_disk_and_is_never_sent_again() {
    let good = text("Fine.");
    let items = good.items.clone();
    let failing = Reply::new()
        .delta("Half ")
        .failed("server_error", "It broke");
    let endpoint = Endpoint::start([good, failing, text("Again fine.")]);
    let home = Home::new(&endpoint);
    home.ask("One").expect_code(0);
    let output = home.ask("Two").expect_code(1);
    for part in ["server_error", "It broke"] {
        assert!(output.stderr.contains(part), "{output}");
    }
    home.ask("Three").expect_code(0);

    assert_eq!(home.turn_ends(), ["completed", "failed", "completed"]);
    let requests = endpoint.requests();
    let input = requests[2].input();
    assert_eq!(requests[2].input_values()[0], question("One"));
    assert_eq!(input[1..2], items);
    assert_eq!(requests[2].input_values()[2..], [question("Three")]);
    let texts: Vec<Value> = home.records_of("user_message");
    assert_eq!(texts[1]["text"], "Two");
}

/// The response is complete but for its last event: the command in it was never agreed upon.
#[test]
fn finished_call_in_a_cut_stream_never_runs() {
    let endpoint = Endpoint::start([Reply::new().bash("call_1", "touch ran").cut()]);
    let home = Home::new(&endpoint);
    let mut tty = home.mino(&["ask", "Go"]).on_tty(SIZE);
    assert_eq!(tty.wait_exit(), 1);
    assert!(!tty.plain().contains(QUESTION), "{}", tty.plain());
    assert!(home.work_files().is_empty());
    assert_eq!(home.kinds(), ["user_message", "turn_end"]);
    assert_eq!(home.turn_ends(), ["failed"]);
}

#[test]
fn bad_call_id_stops_the_response_before_any_of_its_calls() {
    let without = |id: &str| {
        let arguments = quoted(&command_arguments("touch ran"));
        format!(
            r#"{{"id":"fc_x","type":"function_call","status":"completed","arguments":{arguments},{id}"name":"bash"}}"#
        )
    };
    let good = || Reply::new().bash("call_1", "touch ran");
    for bad in [
        good().item(&without("")),
        good().item(&without(r#""call_id":"","#)),
        good().item(&without(r#""call_id":7,"#)),
        good().item(&without(&format!(r#""call_id":"{}","#, "x".repeat(513)))),
        good().bash("call_1", "touch ran"),
    ] {
        let endpoint = Endpoint::start([bad.completed()]);
        let home = Home::new(&endpoint);
        let mut tty = home.mino(&["ask", "Go"]).on_tty(SIZE);
        assert_eq!(tty.wait_exit(), 1);
        assert!(!tty.plain().contains(QUESTION), "{}", tty.plain());
        assert!(home.work_files().is_empty());
        assert_eq!(home.kinds(), ["user_message", "turn_end"]);
        assert_eq!(home.turn_ends(), ["failed"]);
    }
}

#[test]
fn call_id_is_used_once_in_a_turn() {
    let second = Reply::new()
        .bash("call_2", "echo 2 >> ran")
        .bash("call_1", "echo 3 >> ran")
        .completed();
    let endpoint = Endpoint::start([call("call_1", "echo 1 >> ran"), second]);
    let home = Home::new(&endpoint);
    let mut tty = home.mino(&["ask", "Go"]).on_tty(SIZE);
    tty.answer("y");
    assert_eq!(tty.wait_exit(), 1);
    let screens = tty.plain().matches("[Tool: bash]").count();
    assert_eq!(screens, 1, "{}", tty.plain());
    assert_eq!(read(home.in_work("ran")), b"1\n");
    assert_eq!(home.turn_ends(), ["failed"]);
}

/// Small servers count their calls from the start in every turn.
#[test]
fn call_id_of_an_earlier_turn_is_no_fault() {
    let endpoint = Endpoint::start([
        call("call_1", "echo 1 >> ran"),
        text("a"),
        call("call_1", "echo 2 >> ran"),
        text("b"),
    ]);
    let home = Home::new(&endpoint);
    for question in ["One", "Two"] {
        let mut tty = home.mino(&["ask", question]).on_tty(SIZE);
        tty.answer("y");
        assert_eq!(tty.wait_exit(), 0);
    }
    assert_eq!(read(home.in_work("ran")), b"1\n2\n");
    assert_prefix_only_grows(&endpoint.requests());
}

#[test]
fn new_conversation_knows_nothing_of_the_old() {
    let endpoint = Endpoint::start([text("a"), text("b"), text("c")]);
    let home = Home::new(&endpoint);
    home.ask("One").expect_code(0);
    let first = home.only_session();
    home.mino(&["ask", "--new", "Two"]).run("").expect_code(0);
    assert_ne!(home.pointer(), first);
    let back = ["ask", "--session", &first[..8], "Three"];
    home.mino(&back).run("").expect_code(0);
    assert_eq!(home.pointer(), first);
    let requests = endpoint.requests();
    assert_eq!(requests[1].input_values(), [question("Two")]);
    let input = requests[2].input_values();
    assert_eq!((input.len(), &input[0]), (3, &question("One")));
}
