//! The approval question on a real terminal: what it shows, what answers it, and what does not.

mod support;

use std::fs::File;
use std::io::Write;
use std::process::Stdio;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use serde_json::json;
use support::endpoint::{Endpoint, Piece, Release, Reply, call, hold, quoted, text};
use support::home::Home;
use support::tty::{Instead, QUESTION, Size, Tty};
use support::{find, read};

const SIZE: Size = Size { rows: 24, cols: 80 };
const DENIED: &str = "[Tool result: denied]";
const COMPLETED: &str = "[Tool result: completed; exit code 0]";
const NO_TERMINAL: &str = "Denied: approval needs an interactive terminal.";
/// The notices begin with it, whatever it was that was discarded.
const DISCARDED: &str = "Discarded ";
const WARNING: &str = "Warning: hidden or unusual characters are escaped above.";

/// `mino ask` on a terminal.
fn ask(home: &Home) -> Tty {
    home.mino(&["ask", "Go"]).on_tty(SIZE)
}

/// A model that asks for `command` and then says `Understood.`
fn model(command: &str) -> Endpoint {
    Endpoint::start([call("call_1", command), text("Understood.")])
}

/// Nothing ran and nothing says that it did.
#[track_caller]
fn assert_no_trace(home: &Home) {
    assert_eq!(home.work_files(), Vec::<String>::new());
    assert!(home.records_of("tool_start").is_empty());
}

/// The approval screen for a command of one line, as lines that no window has folded.
fn screen(home: &Home, command: &str, between: &[&str]) -> Vec<String> {
    let mut lines = vec!["[Tool: bash]".to_owned(), format!("Command: {command}")];
    lines.extend(between.iter().map(|&line| line.to_owned()));
    let quoted_path = |path: &std::path::Path| quoted(path.to_str().unwrap());
    lines.extend([
        format!("Working directory: {}", quoted_path(&home.work)),
        format!(
            "Environment: {} {} {}",
            r#""PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin""#,
            quoted(&format!("HOME={}", home.home.display())),
            r#""LANG=C.UTF-8""#
        ),
        "Limits: 30 s timeout; 65536 bytes of combined output".to_owned(),
        "Runs with your account permissions; this is not a sandbox.".to_owned(),
        QUESTION.to_owned(),
    ]);
    lines
}

/// The rows that a terminal of `cols` columns makes of them.
fn folded(lines: &[String], cols: u16) -> Vec<String> {
    let mut rows = Vec::new();
    for line in lines {
        let chars: Vec<char> = line.chars().collect();
        for row in chars.chunks(cols.into()) {
            rows.push(row.iter().collect::<String>().trim_end().to_owned());
        }
    }
    rows
}

/// The rows from the first line of the approval screen on.
fn rows_shown(tty: &Tty) -> Vec<String> {
    let mut rows = tty.all_rows();
    let begin = rows.iter().position(|row| row == "[Tool: bash]");
    rows.drain(..begin.expect("an approval screen"));
    rows
}

#[test]
fn whole_screen_is_shown_at_any_width() {
    let command = "echo 'two  words' \"$HOME\" | tr -d '\\n' > said";
    let shown = quoted(command);
    for cols in [80, 20] {
        let endpoint = model(command);
        let home = Home::new(&endpoint);
        let mut tty = home.mino(&["ask", "Go"]).on_tty(Size { rows: 40, cols });
        // The end of the question: a narrow window folds what stands before it.
        tty.wait_for("[y/N] ");
        let expected = folded(&screen(&home, &shown, &[]), cols);
        assert_eq!(rows_shown(&tty), expected);
        tty.send_line("y");
        tty.wait_for(COMPLETED);
        assert_eq!(tty.wait_exit(), 0);
        let said = format!("two  words {}", home.home.display());
        assert_eq!(read(home.in_work("said")), said.as_bytes());
    }
}

#[test]
fn hidden_characters_are_spelled_out_and_run_as_they_are() {
    let command =
        "printf %s '\u{202e}moc.b\u{2069}' > said # \u{1b}]52;c;ZXZpbA==\u{7} \u{200b}世界";
    let shown =
        r#""printf %s '\u{202e}moc.b\u{2069}' > said # \u{1b}]52;c;ZXZpbA==\u{7} \u{200b}世界""#;
    let endpoint = model(command);
    let home = Home::new(&endpoint);
    // As wide as its longest line: wide characters fold in their own way.
    let mut tty = home.mino(&["ask", "Go"]).on_tty(Size {
        rows: 40,
        cols: 200,
    });
    tty.wait_for(QUESTION);
    assert_eq!(
        rows_shown(&tty),
        folded(&screen(&home, shown, &[WARNING]), 200)
    );
    tty.send_line("y");
    tty.wait_for(COMPLETED);
    assert_eq!(tty.wait_exit(), 0);
    for raw in ["\u{202e}", "\u{2069}", "\u{200b}", "\u{1b}]52"] {
        assert_eq!(find(&tty.raw(), raw.as_bytes()), None, "{raw:?} came out");
    }
    let said = read(home.in_work("said"));
    assert_eq!(said, "\u{202e}moc.b\u{2069}".as_bytes());
    let arguments = &home.records_of("tool_start")[0]["arguments"];
    let kept: serde_json::Value = serde_json::from_str(arguments.as_str().unwrap()).unwrap();
    assert_eq!(kept["command"], command);
}

/// Other programs cut long commands ("+57 more lines") or clip them at the window's edge, and
/// people approved what they had not seen. All of it must be there, and how much it is.
#[test]
fn long_commands_are_shown_whole_and_their_size_is_said() {
    let mut lines: Vec<String> = (1..=58).map(|n| format!("line {n} of the text")).collect();
    lines.insert(0, "cat > text <<'END'".into());
    lines.push("END".into());
    lines[57] = "touch in-the-text".into();
    let many = lines.join("\n");
    let long = format!("echo {} > text; touch more", "x".repeat(5_000));
    for (command, pieces, size) in [
        (
            &many,
            &lines,
            format!("Size: 60 lines, {} bytes", many.len()),
        ),
        (&long, &vec![long.clone()], format!(" {} bytes", long.len())),
    ] {
        let endpoint = model(command);
        let home = Home::new(&endpoint);
        let mut tty = ask(&home);
        tty.wait_for(QUESTION);
        let shown = tty.plain();
        let mut rest = &shown[..];
        for piece in pieces {
            let piece = quoted(piece);
            let at = rest
                .find(&piece)
                .unwrap_or_else(|| panic!("{piece} is missing"));
            rest = &rest[at + piece.len()..];
        }
        assert!(rest.contains(&size), "{size} is missing behind it: {rest}");
        tty.send_line("n");
        assert_eq!(tty.wait_exit(), 0);
        assert_no_trace(&home);
    }
}

#[test]
fn only_y_and_yes_approve() {
    let cases = [
        ("y", true),
        ("Y", true),
        ("yes", true),
        ("YES", true),
        ("  yEs  ", true),
        ("", false),
        ("n", false),
        ("yy", false),
        ("yes please", false),
        ("y n", false),
        ("ok", false),
        ("1", false),
        ("да", false),
        ("ｙ", false),
        ("/help", false),
    ];
    let commands: Vec<String> = (0..cases.len())
        .map(|n| format!("echo {n} >> ran"))
        .collect();
    let all = commands
        .iter()
        .enumerate()
        .fold(Reply::new(), |reply, (n, command)| {
            reply.bash(&format!("call_{n}"), command)
        });
    let endpoint = Endpoint::start([all.completed(), text("Understood.")]);
    let home = Home::new(&endpoint);
    let mut tty = ask(&home);
    for (answer, approves) in cases {
        tty.answer(answer);
        tty.wait_for(if approves { COMPLETED } else { DENIED });
    }
    assert_eq!(tty.wait_exit(), 0);
    assert_eq!(read(home.in_work("ran")), b"0\n1\n2\n3\n4\n");
    let statuses = cases.map(|(_, approves)| if approves { "completed" } else { "denied" });
    assert_eq!(home.result_statuses(), statuses);
}

#[test]
fn denied_command_leaves_no_trace_and_the_model_is_told() {
    let endpoint = model("touch ran");
    let home = Home::new(&endpoint);
    let mut tty = ask(&home);
    tty.answer("n");
    tty.wait_for(DENIED);
    tty.wait_for("Understood.");
    assert_eq!(tty.wait_exit(), 0);
    assert_no_trace(&home);
    assert_eq!(
        home.kinds(),
        [
            "user_message",
            "model_response",
            "tool_result",
            "model_response",
            "turn_end"
        ]
    );
    let (call_id, result) = endpoint.wait_for_request(2).results().remove(0);
    assert_eq!((&*call_id, &result["status"]), ("call_1", &json!("denied")));
    assert!(result["output"].as_str().is_some_and(|o| !o.is_empty()));
    assert_eq!(result.as_object().unwrap().len(), 2, "{result}");
}

/// In another program a command that had been refused was run at the next try without a question.
#[test]
fn one_decision_is_for_one_call() {
    let both = Reply::new()
        .bash("call_1", "echo once >> ran")
        .bash("call_2", "echo once >> ran")
        .bash("call_3", "echo once >> ran");
    let endpoint = Endpoint::start([both.completed(), text("Understood.")]);
    let home = Home::new(&endpoint);
    let mut tty = ask(&home);
    for (answer, outcome) in [("n", DENIED), ("y", COMPLETED), ("n", DENIED)] {
        tty.answer(answer);
        tty.wait_for(outcome);
    }
    assert_eq!(tty.wait_exit(), 0);
    assert_eq!(read(home.in_work("ran")), b"once\n");
}

#[test]
fn input_that_is_no_terminal_cannot_approve() {
    let endpoint = model("touch ran");
    let home = Home::new(&endpoint);
    let output = home.mino(&["ask", "Go"]).run("y\n").expect_code(3);
    assert_eq!(output.stdout, "Understood.\n");
    assert!(output.stderr.contains(NO_TERMINAL), "{output}");
    assert_no_trace(&home);
    // What came on standard input was part of the question.
    let input = endpoint.wait_for_request(1).input_values();
    let asked = input[0]["content"][0]["text"].as_str().unwrap();
    assert_eq!(asked.trim_end(), "Go\n\ny");

    // A screen alone is not enough.
    let endpoint = model("touch ran");
    let home = Home::new(&endpoint);
    let command = home.mino(&["ask", "Go"]).command();
    let instead = Instead {
        stdin: Some(Stdio::null()),
        ..Instead::default()
    };
    let mut tty = Tty::start_with(SIZE, &command, instead);
    tty.wait_for(NO_TERMINAL);
    assert_eq!(tty.wait_exit(), 3);
    assert_no_trace(&home);
}

#[test]
fn piped_line_is_a_question_and_never_an_answer() {
    let endpoint = Endpoint::start([
        call("call_1", "touch ran"),
        text("Understood."),
        text("You said y."),
    ]);
    let home = Home::new(&endpoint);
    let output = home.mino::<&str>(&[]).run("Go\ny\n").expect_code(3);
    assert!(output.stderr.contains(NO_TERMINAL), "{output}");
    assert_no_trace(&home);
    let last = endpoint.wait_for_request(3).input_values();
    assert_eq!(last.last().unwrap()["content"][0]["text"], "y");
    assert_eq!(home.turn_ends(), ["completed", "completed"]);
}

#[test]
fn screen_goes_where_a_person_can_see_it() {
    // Standard output is a file: the question is on standard error, the file has the answer alone.
    let endpoint = model("touch ran");
    let home = Home::new(&endpoint);
    let out = home.home.join("out");
    let command = home.mino(&["ask", "Go"]).command();
    let instead = Instead {
        stdout: Some(File::create(&out).unwrap().into()),
        ..Instead::default()
    };
    let mut tty = Tty::start_with(SIZE, &command, instead);
    tty.answer("y");
    tty.wait_for(COMPLETED);
    assert_eq!(tty.wait_exit(), 0);
    assert_eq!(read(&out), b"Understood.\n");
    assert_eq!(home.work_files(), ["ran"]);

    // No screen at all: what nobody was shown nobody can approve, whatever they type.
    let endpoint = model("touch ran");
    let home = Home::new(&endpoint);
    let (out, err) = (home.home.join("out"), home.home.join("err"));
    let command = home.mino(&["ask", "Go"]).command();
    let instead = Instead {
        stdout: Some(File::create(&out).unwrap().into()),
        stderr: Some(File::create(&err).unwrap().into()),
        ..Instead::default()
    };
    let mut tty = Tty::start_with(SIZE, &command, instead);
    endpoint.wait_for_request(1);
    tty.send_line("y");
    tty.wait_exit();
    assert_no_trace(&home);
    assert_eq!(home.result_statuses(), ["denied"]);
    assert_eq!(find(&read(&err), QUESTION.as_bytes()), None);
}

/// A chat whose model holds its answer, a call, until the test lets it go.
fn held_model(command: &str) -> (Endpoint, Release) {
    let (pause, release) = hold();
    let first = Reply::new().piece(pause).bash("call_1", command);
    let endpoint = Endpoint::start([first.completed(), text("Understood.")]);
    (endpoint, release)
}

/// Denies, sees that the chat asks for the next question and that nothing of what was typed
/// before has become one, and leaves.
#[track_caller]
fn deny_and_leave(tty: &mut Tty, endpoint: &Endpoint) {
    tty.send_line("n");
    tty.wait_for(DENIED);
    tty.wait_for("Understood.");
    tty.wait_for("You> ");
    tty.send_line("/exit");
    tty.wait_for("Goodbye.");
    assert_eq!(tty.wait_exit(), 0);
    endpoint.assert_all_used();
    assert_eq!(endpoint.requests().len(), 2);
}

/// A person was typing the next message when the question came, and the Enter that was meant for
/// the message approved a deletion. What was typed before the question must not answer it.
#[test]
fn what_was_typed_ahead_answers_nothing() {
    let (endpoint, release) = held_model("touch ran");
    let home = Home::new(&endpoint);
    let mut tty = home.chat();
    tty.send_line("Go");
    release.wait_reached();
    tty.send("y\ryes\ry");
    release.release();
    tty.wait_for(DISCARDED);
    tty.wait_for(QUESTION);
    deny_and_leave(&mut tty, &endpoint);
    assert_no_trace(&home);
}

/// With more typed ahead than the terminal's buffer holds, the rest flows in after a flush.
#[test]
fn flood_of_typed_ahead_lines_answers_nothing() {
    let (endpoint, release) = held_model("touch ran");
    let home = Home::new(&endpoint);
    let mut tty = home.chat();
    tty.send_line("Go");
    release.wait_reached();
    let mut keyboard = tty.keyboard();
    let typing = thread::spawn(move || keyboard.write_all(&b"y\r".repeat(10 * 1024)).unwrap());
    release.release();
    tty.wait_for(QUESTION);
    typing.join().unwrap();
    deny_and_leave(&mut tty, &endpoint);
    assert_no_trace(&home);
}

#[test]
fn input_that_never_gets_quiet_denies() {
    let (endpoint, release) = held_model("touch ran");
    let home = Home::new(&endpoint);
    let mut tty = ask(&home);
    release.wait_reached();
    let (stop, stopped) = mpsc::channel::<()>();
    let mut keyboard = tty.keyboard();
    // A key every 10 ms, until told to stop: the pace is the test's subject.
    let typing = thread::spawn(move || {
        let pace = Duration::from_millis(10);
        while stopped.recv_timeout(pace) == Err(mpsc::RecvTimeoutError::Timeout) {
            keyboard.write_all(b"y\r").unwrap();
        }
    });
    release.release();
    tty.wait_for(DENIED);
    drop(stop);
    typing.join().unwrap();
    tty.wait_for("Understood.");
    assert_eq!(tty.wait_exit(), 0);
    assert_no_trace(&home);
    assert_eq!(home.result_statuses(), ["denied"]);
}

#[test]
fn paste_is_discarded_and_the_question_stays() {
    for paste in [
        // With the marks that terminals put around a paste.
        "\x1b[200~y\x1b[201~",
        "\x1b[200~y\ry\r\x1b[201~",
        "\x1b[200~some text\ryes\r\x1b[201~",
        // Without them: several lines at once.
        "y\ry\r",
        "y\rand more\r",
    ] {
        let endpoint = model("touch ran");
        let home = Home::new(&endpoint);
        let mut tty = home.chat();
        tty.send_line("Go");
        tty.wait_for(QUESTION);
        tty.send(paste);
        tty.wait_for(DISCARDED);
        tty.wait_for(QUESTION);
        deny_and_leave(&mut tty, &endpoint);
        assert_no_trace(&home);
    }

    // The question is still one that can be answered with yes.
    let endpoint = model("touch ran");
    let home = Home::new(&endpoint);
    let mut tty = ask(&home);
    tty.wait_for(QUESTION);
    tty.send("n\rn\r");
    tty.wait_for(DISCARDED);
    tty.answer("y");
    tty.wait_for(COMPLETED);
    assert_eq!(tty.wait_exit(), 0);
    assert_eq!(home.work_files(), ["ran"]);
}

#[test]
fn answer_never_becomes_the_next_question() {
    let endpoint = Endpoint::start([
        call("call_1", "echo 1 >> ran"),
        text("Understood."),
        text("Second answer."),
    ]);
    let home = Home::new(&endpoint);
    let mut tty = home.chat();
    tty.send_line("Go");
    tty.answer("y");
    tty.wait_for("Understood.");
    tty.wait_for("You> ");
    tty.send_line("Next");
    tty.wait_for("Second answer.");
    tty.wait_for("You> ");
    tty.send_line("/exit");
    assert_eq!(tty.wait_exit(), 0);
    let questions = home.records_of("user_message");
    let texts: Vec<_> = questions.iter().map(|record| &record["text"]).collect();
    assert_eq!(texts, ["Go", "Next"]);
    assert_eq!(read(home.in_work("ran")), b"1\n");
}

#[test]
fn end_of_input_and_exit_deny_and_leave() {
    for leaving in ["\x04", "/exit\r"] {
        for (arguments, code) in [(vec![], 0), (vec!["ask", "Go"], 1)] {
            let two = Reply::new()
                .bash("call_1", "touch ran")
                .bash("call_2", "touch ran");
            let endpoint = Endpoint::start([two.completed()]);
            let home = Home::new(&endpoint);
            let mut tty = home.mino(&arguments).on_tty(SIZE);
            if arguments.is_empty() {
                tty.wait_for("You> ");
                tty.send_line("Go");
            }
            tty.wait_for(QUESTION);
            tty.send(leaving);
            assert_eq!(tty.wait_exit(), code, "{leaving:?} {arguments:?}");
            assert_no_trace(&home);
            assert_eq!(home.result_statuses(), ["denied", "not_executed"]);
            assert_eq!(home.turn_ends(), ["cancelled"]);
            endpoint.assert_all_used();
        }
    }
}

/// Sequences that would set the clipboard, clear the screen, change the title or reset the
/// terminal, in the model's text (also split over two events), in a command and in its output.
#[test]
fn escapes_are_shown_and_not_obeyed() {
    let attacks = [
        "\u{1b}]52;c;ZXZpbA==\u{7}",
        "\u{1b}[2J",
        "\u{1b}]0;owned\u{7}",
        "\u{1b}c",
        "\u{9b}31m",
    ];
    let said = format!("before {} after", attacks.concat());
    let item = json!({
        "id": "msg_1", "type": "message", "status": "completed", "role": "assistant",
        "content": [{"type": "output_text", "annotations": [], "text": said}],
    });
    let (head, tail) = said.split_at(said.find("]52").unwrap());
    let command = r"printf '\e]52;c;ZXZpbA==\a\e[2J\e]0;owned\a\ec\302\23331m\r\nend\n'";
    let first = Reply::new()
        .delta(head)
        .delta(tail)
        .item(&item.to_string())
        .bash("call_1", command);
    let endpoint = Endpoint::start([first.completed(), text("Understood.")]);
    let home = Home::new(&endpoint);
    let mut tty = ask(&home);
    let left = "]52;c;ZXZpbA==[2J]0;ownedc31m";
    tty.wait_for(&format!("before {left} after"));
    tty.answer("y");
    tty.wait_for(COMPLETED);
    tty.wait_for(left);
    tty.wait_for("end");
    assert_eq!(tty.wait_exit(), 0);
    for attack in attacks {
        let found = find(&tty.raw(), attack.as_bytes());
        assert_eq!(found, None, "{attack:?} came out");
    }
    // What is kept and sent is what it was.
    let output = format!("{}\r\nend\n", attacks.concat());
    assert_eq!(
        home.records_of("tool_result")[0]["result"]["output"],
        output
    );
    let sent = &endpoint.wait_for_request(2).results()[0].1["output"];
    assert_eq!(*sent, output);
    assert_eq!(home.records_of("model_response")[0]["text"], said);
}

#[test]
fn command_of_a_lost_turn_is_pointed_out_when_it_comes_again() {
    let failing = Reply::new().failed("server_error", "It broke");
    let endpoint = Endpoint::start([
        call("call_1", "echo 1 >> ran"),
        failing,
        call("call_1", "echo 1 >> ran"),
        text("Understood."),
    ]);
    let home = Home::new(&endpoint);
    let mut tty = ask(&home);
    tty.answer("y");
    assert_eq!(tty.wait_exit(), 1);
    assert!(!tty.plain().contains("Notice: this command"));

    let time = home.records_of("tool_start")[0]["time"].clone();
    let notice = format!(
        "Notice: this command was started at {} in a turn that ended failed; \
         the model does not know of it, and it may already have run.",
        time.as_str().unwrap()
    );
    let mut tty = ask(&home);
    tty.wait_for(QUESTION);
    let mut expected = screen(&home, r#""echo 1 >> ran""#, &[]);
    expected.insert(expected.len() - 1, notice);
    assert_eq!(rows_shown(&tty), folded(&expected, SIZE.cols));
    tty.send_line("n");
    assert_eq!(tty.wait_exit(), 0);
    assert_eq!(read(home.in_work("ran")), b"1\n");
    // The model is not told.
    for request in endpoint.requests() {
        assert_eq!(find(&request.body, b"this command was started"), None);
    }
}

/// The stream goes silent in the middle of the call: there is nothing to be approved yet.
#[test]
fn half_a_call_is_never_asked_about() {
    let first = Reply::new()
        .bash("call_1", "touch ran")
        .piece(Piece::AwaitClose);
    let endpoint = Endpoint::start([first.cut()]);
    let home = Home::new(&endpoint);
    let mut tty = ask(&home);
    endpoint.wait_for_request(1);
    home.wait_for_records("user_message", 1);
    tty.send("\x03");
    assert_eq!(tty.wait_exit(), 130);
    endpoint.wait_for_closed(1);
    assert!(!tty.plain().contains(QUESTION));
    assert_no_trace(&home);
    assert_eq!(home.turn_ends(), ["cancelled"]);
}
