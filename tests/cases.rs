//! What went wrong for people with programs of this kind, brought about again: each test tells the
//! story, and shows that it ends well here.

mod support;

use std::fs::{self, Permissions};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};
use support::endpoint::{
    Answer, Endpoint, Reply, Request, call, error_flat, hold, http_error, quoted, text,
};
use support::home::{Home, KEY, Mino, mode};
use support::tls::{Front, Tunnel};
use support::tty::{Instead, QUESTION, Size, Tty};
use support::{alive, find, mark, nothing_alive, probe, read};

const SIZE: Size = Size { rows: 24, cols: 80 };
const COMPLETED: &str = "[Tool result: completed; exit code 0]";

/// `mino ask` on a terminal.
fn ask(home: &Home) -> Tty {
    home.mino(&["ask", "Go"]).on_tty(SIZE)
}

/// A model that asks for `command` and then says `Understood.`
fn model(command: &str) -> Endpoint {
    Endpoint::start([call("call_1", command), text("Understood.")])
}

/// Asks, approves every call, and waits for the end, which must be good.
#[track_caller]
fn approve_all(home: &Home, calls: usize) -> Tty {
    let mut tty = ask(home);
    for _ in 0..calls {
        tty.answer("y");
    }
    assert_eq!(tty.wait_exit(), 0);
    tty
}

/// The results that the last request carried.
fn results(endpoint: &Endpoint) -> Vec<Value> {
    let requests = endpoint.requests();
    let results = requests.last().expect("a request").results();
    results.into_iter().map(|(_, result)| result).collect()
}

fn question_of(request: &Request) -> String {
    let input = request.input_values();
    let question = &input.last().expect("a question")["content"][0]["text"];
    question.as_str().expect("a text").to_owned()
}

// --- what is shown ------------------------------------------------------------------------------

/// A right-to-left override made `curl` of a hostile server read as one of a friendly one in the
/// prompt, and it was approved. Every character that reorders or hides text is spelled out, the
/// reader is warned, and what is kept and run is still the original.
#[test]
fn reordering_characters_are_spelled_out() {
    let tricks: Vec<char> = ['\u{200e}', '\u{200f}', '\u{61c}']
        .into_iter()
        .chain('\u{202a}'..='\u{202e}')
        .chain('\u{2066}'..='\u{2069}')
        .collect();
    let host: String = tricks.iter().flat_map(|c| [*c, 'a']).collect();
    let command = format!("printf %s 'http://{host}' > said");
    let endpoint = model(&command);
    let home = Home::new(&endpoint);
    let mut tty = ask(&home);
    let spelled: String = tricks
        .iter()
        .map(|c| format!("{}a", c.escape_unicode()))
        .collect();
    tty.wait_for(&spelled);
    tty.wait_for("Warning: hidden or unusual characters are escaped above.");
    tty.answer("y");
    assert_eq!(tty.wait_exit(), 0);
    for trick in tricks {
        let mut bytes = [0; 4];
        let bytes = trick.encode_utf8(&mut bytes).as_bytes();
        assert_eq!(find(&tty.raw(), bytes), None, "{trick:?} came out");
    }
    assert_eq!(
        read(home.in_work("said")),
        format!("http://{host}").as_bytes()
    );
    let arguments = &home.records_of("tool_start")[0]["arguments"];
    let kept: Value = serde_json::from_str(arguments.as_str().unwrap()).unwrap();
    assert_eq!(kept["command"], command);
}

/// Sequences that set the clipboard or the title reached the terminal through error messages, where
/// nobody had thought of them. Whatever a server says in whatever place, and whatever a folder is
/// called, no byte that a terminal obeys comes out.
#[test]
fn escapes_in_errors_and_names_are_not_obeyed() {
    const EVIL: &str = "\u{1b}]52;c;ZXZpbA==\u{7}\u{1b}[2J\u{9b}31m\u{1b}c\r\u{8}forged";
    let header = "\u{9b}31mforged\u{85}";
    let evil_call =
        |name: &str, call_id: &str| Reply::new().call(call_id, name, "{\"a\":\"\\u001b\"}");
    let answers: Vec<Vec<Answer>> = vec![
        vec![http_error("400 Bad Request", EVIL, EVIL)],
        vec![http_error("403 Forbidden", "c", "m").header("x-request-id", header)],
        vec![Answer::http("200 OK", "text/html", format!("<html>{EVIL}"))],
        vec![Answer::http(
            "200 OK",
            &format!("text/html{header}"),
            format!("<html>{EVIL}"),
        )],
        vec![Answer::http(
            "400 Bad Request",
            "text/plain",
            [&[0xff, 0x9b], EVIL.as_bytes()].concat(),
        )],
        vec![Answer::http("302 Found", "text/plain", "").header("Location", header)],
        vec![Reply::new().failed(EVIL, EVIL)],
        vec![error_flat(EVIL, EVIL)],
        vec![Reply::new().incomplete(EVIL)],
        vec![Reply::new().message(EVIL).completed()],
        vec![
            Reply::new()
                .item(&format!("{{\"type\":{}}}", quoted(&format!("{EVIL}_call"))))
                .completed(),
        ],
        vec![evil_call(EVIL, "call_1").completed(), text("a")],
        vec![
            evil_call("t", EVIL).completed(),
            evil_call("t", EVIL).completed(),
        ],
    ];
    for (number, answers) in answers.into_iter().enumerate() {
        let endpoint = Endpoint::start(answers);
        let home = Home::new(&endpoint);
        let folder = home.in_work(EVIL);
        fs::create_dir(&folder).unwrap();
        let asked = home.mino(&["ask", "Go"]).in_folder(&folder).run("");
        let logged = home.mino(&["log"]).run("").expect_code(0);
        for output in [asked, logged] {
            let all = format!("{}{}", output.stdout, output.stderr);
            let bad = all.chars().find(|c| c.is_control() && *c != '\n');
            assert_eq!(bad, None, "{number}: {all:?}");
        }
        endpoint.assert_all_used();
    }
}

/// In an editor's shell buffer, or with the output in a file, escape sequences are garbage on the
/// page. Where the terminal isn't known to understand them, none is written, and lines still work.
#[test]
fn without_a_capable_terminal_there_is_no_escape_sequence() {
    let turn = || [call("call_1", "echo ran"), text("Understood.")];
    let chat = |set: &dyn Fn(Mino) -> Mino| {
        let endpoint = Endpoint::start(turn());
        let home = Home::new(&endpoint);
        let mut tty = set(home.mino::<&str>(&[])).on_tty(SIZE);
        tty.wait_for("You> ");
        tty.send_line("Go");
        tty.answer("y");
        tty.wait_for("Understood.");
        tty.wait_for("You> ");
        tty.send_line("/exit");
        assert_eq!(tty.wait_exit(), 0);
        tty.raw()
    };
    assert_eq!(find(&chat(&|mino| mino.env("TERM", "dumb")), b"\x1b"), None);
    assert_eq!(find(&chat(&|mino| mino.without_env("TERM")), b"\x1b"), None);
    // Here escape sequences are fine, and colours are not (`ESC [ ... m`).
    let raw = String::from_utf8(chat(&|mino| mino.env("NO_COLOR", "1"))).unwrap();
    assert!(raw.contains('\u{1b}'), "the editor is on");
    for sequence in raw.split("\u{1b}[").skip(1) {
        let end = sequence.find(|c: char| c.is_ascii_alphabetic());
        assert_ne!(end.map(|end| &sequence[end..=end]), Some("m"), "{raw:?}");
    }

    // The answer goes to a file, and the person is at the terminal.
    let endpoint = Endpoint::start(turn());
    let home = Home::new(&endpoint);
    let out = home.home.join("out");
    let instead = Instead {
        stdout: Some(fs::File::create(&out).unwrap().into()),
        ..Instead::default()
    };
    let mut tty = Tty::start_with(SIZE, &home.mino(&["ask", "Go"]).command(), instead);
    tty.answer("y");
    assert_eq!(tty.wait_exit(), 0);
    assert_eq!(read(&out), b"Understood.\n");
}

/// After some ways out the shell's lines had no echo, and control keys printed as `^C`. Whatever
/// the way out, every setting is as it was, and every mode that was switched on is off again.
#[test]
fn every_way_out_leaves_the_terminal_as_it_was() {
    let untouched = {
        let mut tty = Tty::start(SIZE, &Command::new("true"));
        assert_eq!(tty.wait_exit(), 0);
        tty.termios()
    };
    let (at_prompt, at_question, streaming) = ("You> ", QUESTION, "Half ");
    for (state, way, code) in [
        (at_prompt, "\x04", 0),
        (at_prompt, "/exit\r", 0),
        (at_prompt, "half a line\x03", 130),
        (at_prompt, "TERM", 143),
        (at_prompt, "HUP", 129),
        (streaming, "\x03", 130),
        (streaming, "TERM", 143),
        (at_question, "\x04", 0),
        (at_question, "\x03", 130),
        (at_question, "TERM", 143),
        // The disk is full when the answer is to be saved.
        (streaming, "FULL", 1),
    ] {
        let (pause, release) = hold();
        let answer = match state == at_question {
            true => call("call_1", "true"),
            false => Reply::new()
                .delta("Half ")
                .piece(pause)
                .message(&"whole ".repeat(400))
                .completed(),
        };
        let endpoint = Endpoint::start([answer]);
        let home = Home::new(&endpoint);
        let mino = home.mino::<&str>(&[]);
        let mino = match way {
            // A KiB: enough for the question, not for the answer.
            "FULL" => mino.through(&["/bin/bash", "-c", "ulimit -f 1; exec \"$0\" \"$@\""]),
            _ => mino,
        };
        let mut tty = mino.on_tty(SIZE);
        tty.wait_for("You> ");
        if state != at_prompt {
            tty.send_line("Go");
            tty.wait_for(state);
        }
        match way {
            "TERM" => tty.signal(Signal::TERM),
            "HUP" => tty.signal(Signal::HUP),
            "FULL" => {}
            keys => tty.send(keys),
        }
        if way == "FULL" {
            release.release();
        }
        assert_eq!(tty.wait_exit(), code, "{state:?} {way:?}\n{}", tty.plain());
        assert_eq!(tty.termios(), untouched, "{state:?} {way:?}");
        let raw = String::from_utf8_lossy(&tty.raw()).into_owned();
        for mode in ["?2004", "?25", "?1049"] {
            let last = raw
                .rsplit_once(&format!("\u{1b}[{mode}"))
                .map(|(_, rest)| &rest[..1]);
            let is_off = if mode == "?25" { "h" } else { "l" };
            assert!(last.is_none_or(|last| last == is_off), "{mode} {raw:?}");
        }
    }
}

// --- commands -----------------------------------------------------------------------------------

/// A command timed out, only its shell was killed, and the call hung for as long as a child held the
/// pipe; and where it did end, all that had been printed was thrown away, so that the model saw a
/// time-out and nothing else. This is the one test that waits for the real 30 seconds: one child
/// writes into a FIFO for ever, another reads it, and the result must come, with the output, and with
/// nobody left.
#[test]
fn timed_out_command_ends_with_its_children_and_keeps_its_output() {
    let mark = mark();
    let command = format!(
        ": {mark}; echo one; echo two >&2; mkfifo p; (while :; do echo c; sleep 1; done) > p & cat p"
    );
    let endpoint = model(&command);
    let home = Home::new(&endpoint);
    let mut tty = ask(&home);
    tty.answer("y");
    let start = Instant::now();
    tty.wait_for("[Tool result: timed_out");
    let took = start.elapsed();
    assert!(nothing_alive(&mark), "{:?}", alive(&mark));
    assert_eq!(tty.wait_exit(), 0);
    let (least, most) = (Duration::from_secs(29), Duration::from_secs(40));
    assert!(least < took && took < most, "{took:?}");
    let result = &results(&endpoint)[0];
    assert_eq!(result["status"], "timed_out");
    let output = result["output"].as_str().unwrap();
    assert!(output.starts_with("one\ntwo\nc\nc\n"), "{output}");
    assert!(output.ends_with("[ended after 30 s]"), "{output}");
}

/// The fix for silent background processes still hung for those that keep on writing: reading until
/// it was quiet never ended. Here the flood is the end: 64 KiB are kept, and all of it is stopped.
#[test]
fn background_flood_ends_the_command_at_once() {
    let mark = mark();
    let endpoint = model(&format!("yes {mark} > /dev/stdout & sleep 20; echo fg"));
    let home = Home::new(&endpoint);
    let mut tty = ask(&home);
    tty.answer("y");
    let start = Instant::now();
    tty.wait_for("[Tool result: output_limit");
    assert!(
        start.elapsed() < Duration::from_secs(15),
        "it waited for the sleep"
    );
    assert!(nothing_alive(&mark), "{:?}", alive(&mark));
    assert_eq!(tty.wait_exit(), 0);
    let result = &results(&endpoint)[0];
    assert_eq!(
        (&result["status"], &result["truncated"]),
        (&json!("output_limit"), &json!(true))
    );
    assert!(!result["output"].as_str().unwrap().contains("fg"));
}

/// Commands waited for a password or an editor that nobody could answer, or took what the person
/// typed for the next question. A command's input is empty and it has no terminal; the line that is
/// typed while it runs is still there for the chat.
#[test]
fn command_that_reads_gets_nothing_and_takes_nothing() {
    let gate =
        "read go < gate; cat; echo cat:$?; read x; echo got:$x:$?; read y < /dev/tty; echo tty:$?";
    let endpoint = Endpoint::start([call("call_1", gate), text("Understood."), text("Next.")]);
    let home = Home::new(&endpoint);
    let made = Command::new("mkfifo").arg(home.in_work("gate")).status();
    assert!(made.unwrap().success());
    let mut tty = home.chat();
    tty.send_line("Go");
    tty.answer("y");
    home.wait_for_records("tool_start", 1);
    // Opens once the command waits for it.
    let go = fs::File::options().write(true).open(home.in_work("gate"));
    tty.send_line("My next question");
    drop(go);
    tty.wait_for("Understood.");
    tty.wait_for("Next.");
    tty.wait_for("You> ");
    tty.send_line("/exit");
    assert_eq!(tty.wait_exit(), 0);
    let result = &endpoint.wait_for_request(2).results()[0].1;
    let output = result["output"].as_str().unwrap();
    assert!(output.starts_with("cat:0\ngot::1\n"), "{output}");
    assert!(
        output.contains("/dev/tty: No such device or address\ntty:1\n"),
        "{output}"
    );
    assert_eq!(
        question_of(&endpoint.wait_for_request(3)),
        "My next question"
    );
}

/// On systems that keep Bash elsewhere every command failed with "no such file". The first `bash` of
/// the configured PATH is used and the person sees which; where there is none, both the person and
/// the model are told, in a sentence.
#[test]
fn bash_elsewhere_is_found_and_its_absence_is_told() {
    // An empty file system over the folder of `/bin/bash`, for the test's own processes.
    let hide = r#"mount -t tmpfs none "$(dirname "$(realpath /bin/bash)")" && exec "$0" "$@""#;
    let wrapper = ["unshare", "-m", "/bin/sh", "-c", hide];
    // 127: hidden as wanted.
    if probe(&[&wrapper[..], &["/bin/bash", "-c", "true"]].concat()) != Some(127) {
        eprintln!("SKIPPED: a system without /bin/bash: it takes unshare, mount and root");
        return;
    }
    let home_of = |endpoint: &Endpoint| {
        let home = Home::new(endpoint);
        home.configure(
            "path",
            format!("relative:{}", home.home.join("b").display()),
        );
        home
    };
    let endpoint = model("echo it runs");
    let home = home_of(&endpoint);
    let bash = home.home.join("b/bash");
    fs::create_dir(home.home.join("b")).unwrap();
    fs::copy("/bin/bash", &bash).unwrap();
    let mut tty = home.mino(&["ask", "Go"]).through(&wrapper).on_tty(SIZE);
    tty.wait_for(&format!("Shell: {}", quoted(bash.to_str().unwrap())));
    tty.answer("y");
    tty.wait_for(COMPLETED);
    tty.wait_for("it runs");
    assert_eq!(tty.wait_exit(), 0);

    let endpoint = model("echo it runs");
    let home = home_of(&endpoint);
    let mut tty = home.mino(&["ask", "Go"]).through(&wrapper).on_tty(SIZE);
    tty.answer("y");
    let sentence = "bash not found in PATH";
    tty.wait_for("[Tool result: failed]");
    tty.wait_for(sentence);
    assert_eq!(tty.wait_exit(), 0);
    let output = &results(&endpoint)[0]["output"];
    assert!(output.as_str().unwrap().starts_with(sentence), "{output}");
}

/// A program stopped with "not a char boundary", since it cut text at a byte. The cut falls on each
/// byte of a four-byte character here; what is kept is whole, and says that it was cut.
#[test]
fn output_is_never_cut_within_a_character() {
    let flood = |before: usize| {
        format!("head -c {before} /dev/zero | tr '\\0' a; yes 😀 | tr -d '\\n' | head -c 70000")
    };
    let first = (0..4).fold(Reply::new(), |reply, n| {
        reply.bash(&format!("call_{n}"), &flood(n))
    });
    let endpoint = Endpoint::start([first.completed(), text("Understood.")]);
    let home = Home::new(&endpoint);
    approve_all(&home, 4);
    let results = results(&endpoint);
    assert_eq!(results.len(), 4);
    for (before, result) in results.iter().enumerate() {
        assert_eq!(result["truncated"], true);
        let output = result["output"].as_str().unwrap();
        let kept = output.split('\n').next().unwrap();
        let faces = (65_536 - before) / 4;
        assert_eq!(kept, "a".repeat(before) + &"😀".repeat(faces));
        assert!(!output.contains('\u{fffd}'));
    }
}

/// Half an emoji in a stored conversation made every later request fail. Output whose characters
/// cross every limit goes to disk, comes back in another process and is sent again: always whole
/// characters, for the strictest reader.
#[test]
fn cut_output_survives_being_stored_and_sent_again() {
    let command = "printf x; yes '👩‍👩‍👧 é 中' | tr -d '\\n' | head -c 80000";
    let endpoint = Endpoint::start([call("call_1", command), text("Understood."), text("Again.")]);
    let home = Home::new(&endpoint);
    approve_all(&home, 1);
    home.ask("And again").expect_code(0);
    home.records();
    let requests = endpoint.requests();
    for request in &requests {
        let body = std::str::from_utf8(&request.body).expect("a body in UTF-8");
        assert!(
            !body.contains("\\ud") && !body.contains('\u{fffd}'),
            "half a character"
        );
    }
    assert_eq!(requests[1].results(), requests[2].results());
}

/// The whole output was collected before it was cut, and the machine ran out of memory. Three
/// gigabytes are offered; the command is ended at 64 KiB, and Mino has not grown by them.
#[test]
fn endless_output_costs_no_memory() {
    let (pause, release) = hold();
    let endpoint = Endpoint::start([
        call("call_1", "yes | head -c 3000000000"),
        Reply::new().piece(pause).message("Understood.").completed(),
    ]);
    let home = Home::new(&endpoint);
    let mut tty = ask(&home);
    tty.answer("y");
    tty.wait_for("[Tool result: output_limit");
    release.wait_reached();
    let status = fs::read_to_string(format!("/proc/{}/status", tty.pid())).unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmHWM:"))
        .unwrap();
    let peak_kib: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    assert!(peak_kib < 64 * 1024, "{line}");
    release.release();
    assert_eq!(tty.wait_exit(), 0);
}

/// Output in another encoding poisoned the conversation: every later request failed. It is replaced
/// safely; and a character that arrives byte by byte is one character.
#[test]
fn foreign_bytes_are_replaced_and_slow_characters_are_whole() {
    let first = Reply::new()
        .bash("call_1", r"printf '\xc4\xe3\xba\xc3\n'")
        .bash(
            "call_2",
            r#"for c in e4 b8 ad; do printf "\x$c"; sleep .3; done"#,
        );
    let endpoint = Endpoint::start([first.completed(), text("Understood."), text("On it goes.")]);
    let home = Home::new(&endpoint);
    approve_all(&home, 2);
    let results = results(&endpoint);
    let replaced = results[0]["output"].as_str().unwrap();
    assert!(
        replaced.contains('\u{fffd}') && replaced.ends_with('\n'),
        "{replaced}"
    );
    assert_eq!(results[1]["output"], "中");
    assert_eq!(home.ask("And now?").expect_code(0).stdout, "On it goes.\n");
}

// --- connections --------------------------------------------------------------------------------

/// "Error sending request" was all that people behind a company's proxy got to see. A certificate
/// that nobody vouches for is named as such, with the way to trust it; a proxy is used, or named
/// with what is wrong with it; and a server on this machine is reached directly, whatever is set.
#[test]
fn certificates_and_proxies_are_named() {
    let endpoint = Endpoint::start([text("a"), text("b"), text("c")]);
    let front = Front::start(&["localhost", "model.test"], endpoint.address());
    let tunnel = Tunnel::start(front.address);
    let home = Home::new(&endpoint);
    let pem = home.home.join("company.pem");
    fs::write(&pem, &front.pem).unwrap();
    let ask = |url: &str| home.mino(&["ask", "--base-url", url, "Go"]);
    let direct = format!("https://localhost:{}/v1", front.address.port());

    let output = ask(&direct).run("").expect_code(1);
    for part in [
        &direct[8..direct.len() - 3],
        "invalid peer certificate: UnknownIssuer",
        "SSL_CERT_FILE",
    ] {
        assert!(output.stderr.contains(part), "{part}: {output}");
    }
    // Once: it does not get better by asking again.
    assert!(!output.stderr.contains("trying again"), "{output}");
    ask(&direct)
        .env("SSL_CERT_FILE", &pem)
        .run("")
        .expect_code(0);

    let proxied = |url: &str| ask(url).env("SSL_CERT_FILE", &pem);
    proxied("https://model.test/v1")
        .env(
            "https_proxy",
            format!("http://user:pass@{}", tunnel.address),
        )
        .run("")
        .expect_code(0);
    let asked = tunnel.asked().concat();
    assert!(
        asked.starts_with("CONNECT model.test:443 HTTP/1.1\r\n"),
        "{asked}"
    );
    // user:pass
    assert!(
        asked.contains("Basic dXNlcjpwYXNz") && !asked.contains(KEY),
        "{asked}"
    );

    // Nothing listens there any more.
    let unused = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let dead = format!("http://user:pass@{unused}");
    let first_words = |mino: Mino, words: &str| {
        let mut asking = mino.start();
        asking.close_stdin();
        asking.wait_for_stderr(words);
        asking.wait_for_stderr("; trying again in 1 s (2 of 3).\n");
        asking.signal(Signal::TERM);
        let output = asking.wait().expect_code(143);
        assert!(!output.stderr.contains("pass@"), "{output}");
    };
    first_words(
        proxied("https://model.test/v1").env("HTTPS_PROXY", &dead),
        &format!(
            "Cannot connect to \"model.test\" through the proxy \"{unused}\" of HTTPS_PROXY: Connection refused"
        ),
    );
    // Exempt: it is the server itself that can't be reached.
    let exempt = proxied("https://192.0.2.1/v1")
        .env("ALL_PROXY", &dead)
        .env("NO_PROXY", " example.com , 192.0.2.1 ");
    match probe(&["unshare", "-n", "true"]) {
        Some(0) => first_words(
            exempt.through(&["unshare", "-n"]),
            "Cannot connect to \"192.0.2.1\": Network is unreachable",
        ),
        _ => eprintln!("SKIPPED: a server exempt from the proxy: it takes unshare and root"),
    }
    home.mino(&["ask", "Go"])
        .env("HTTP_PROXY", &dead)
        .env("ALL_PROXY", &dead)
        .run("")
        .expect_code(0);
    endpoint.assert_all_used();
}

// --- the account and the disk -------------------------------------------------------------------

/// Another account for the tests, such as one that a container makes up: without a name.
const ORDINARY: &str = "54321";

/// Starts what follows as that account; `None` where the tests may not.
fn as_ordinary(home: &Home) -> Option<Vec<String>> {
    let wrapper = [
        "chroot",
        "--skip-chdir",
        &format!("--userspec=+{ORDINARY}:+{ORDINARY}"),
        "/",
    ];
    if probe(&[&wrapper[..], &["true"]].concat()) != Some(0) {
        return None;
    }
    let chown = Command::new("chown")
        .arg("-R")
        .arg(ORDINARY)
        .arg(home.root())
        .status();
    assert!(chown.unwrap().success());
    // The program's own folder may be closed to the other account.
    let program = home.root().join("mino");
    fs::copy(support::mino_path(), &program).unwrap();
    fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
    let run = r#"program=$0; shift; exec "$program" "$@""#;
    let mut words: Vec<String> = wrapper.iter().map(|&word| word.to_owned()).collect();
    words.extend(["sh", "-c", run, program.to_str().unwrap()].map(str::to_owned));
    Some(words)
}

fn words(wrapper: &[String]) -> Vec<&str> {
    wrapper.iter().map(|word| &**word).collect()
}

/// `env | grep KEY` as a command printed the agent's own key into the conversation. (What root sees
/// is tested with the command line.) Here a command of the same ordinary account can't even open
/// what the kernel tells of Mino, though it may of its own shell.
#[test]
fn command_of_the_same_account_cannot_look_into_mino() {
    let spy = "for f in environ maps mem; do cat /proc/$PPID/$f > /dev/null; done; \
               ls /proc/$PPID/fd; cat /proc/$$/environ > own";
    let endpoint = model(spy);
    let home = Home::new(&endpoint);
    let Some(wrapper) = as_ordinary(&home) else {
        eprintln!("SKIPPED: a command of an ordinary account: it takes chroot and root");
        return;
    };
    let mino = home
        .mino(&["ask", "Go"])
        .env("MINO_API_KEY", KEY)
        .through(&words(&wrapper));
    let mut tty = mino.on_tty(SIZE);
    tty.answer("y");
    assert_eq!(tty.wait_exit(), 0, "{}", tty.plain());
    let output = &results(&endpoint)[0]["output"];
    let output = output.as_str().unwrap();
    assert_eq!(output.matches("Permission denied").count(), 4, "{output}");
    assert!(!read(home.in_work("own")).is_empty());
}

/// Conversations were readable for everybody on the machine. Whatever the umask, folders are 0700
/// and files 0600, copies included; and what an earlier version or a person left open is closed.
#[test]
fn everything_on_disk_is_private() {
    #[track_caller]
    fn assert_private(folder: &Path) {
        assert_eq!(mode(folder), 0o700, "{}", folder.display());
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => assert_private(&path),
                false => assert_eq!(mode(&path), 0o600, "{}", path.display()),
            }
        }
    }
    for umask in ["000", "022", "077"] {
        let endpoint = Endpoint::start([text("a"), text("b"), text("c")]);
        let home = Home::empty();
        let script = format!("umask {umask}; exec \"$0\" \"$@\"");
        let ask = || {
            home.mino(&[
                "ask",
                "--model",
                "m",
                "--base-url",
                &endpoint.base_url(),
                "Go",
            ])
            .env("MINO_API_KEY", KEY)
            .through(&["sh", "-c", &script])
            .run("")
            .expect_code(0)
        };
        ask();
        assert_private(&home.mino_home);
        let journal = home.journal_path();
        let torn = [&read(&journal)[..], b"{\"v\":2,"].concat();
        fs::write(&journal, torn).unwrap();
        ask();
        assert_eq!(home.session_files().len(), 2, "a copy was made");
        assert_private(&home.mino_home);
        home.write_config(&json!({}));
        let everything = Command::new("chmod")
            .args(["-R", "a+rwX"])
            .arg(&home.mino_home)
            .status();
        assert!(everything.unwrap().success());
        ask();
        assert_private(&home.mino_home);
    }
}

/// A read-only home ended in a crash in the middle of a turn, when the record could not be written.
/// What can't be kept isn't begun: no request is made, and the message has the path and the reason.
#[test]
fn home_that_cannot_be_written_is_refused_before_any_request() {
    let endpoint = Endpoint::start([text("a"), text("b")]);
    let home = Home::new(&endpoint);
    home.ask("One").expect_code(0);
    let refused = |mino: Mino, message: &str| {
        let output = mino.run("").expect_code(1);
        assert_eq!(home.tidied(&output.stderr), format!("mino: {message}\n"));
        assert_eq!(endpoint.requests().len(), 1);
        assert_eq!(home.work_files(), Vec::<String>::new());
    };
    let script = r#"mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && exec "$@""#;
    let read_only = [
        "unshare",
        "-m",
        "sh",
        "-c",
        script,
        home.root().to_str().unwrap(),
    ];
    if probe(&[&read_only[..], &["true"]].concat()) == Some(0) {
        refused(
            home.mino(&["ask", "Two"]).through(&read_only),
            "cannot open \"<root>/mino-home/sessions/<id>.jsonl\": Read-only file system (os error 30)",
        );
        refused(
            home.mino(&["ask", "--new", "Two"]).through(&read_only),
            "cannot create \"<root>/mino-home/sessions/<id>.jsonl\": Read-only file system (os error 30)",
        );
    } else {
        eprintln!("SKIPPED: a read-only home: it takes unshare, mount and root");
    }
    let Some(ordinary) = as_ordinary(&home) else {
        eprintln!("SKIPPED: a home without rights: it takes chroot and root");
        return;
    };
    let ask = |words_of_call: &[&str]| home.mino(words_of_call).through(&words(&ordinary));
    let sessions = home.mino_home.join("sessions");
    fs::set_permissions(&sessions, Permissions::from_mode(0o500)).unwrap();
    refused(
        ask(&["ask", "--new", "Two"]),
        "cannot create \"<root>/mino-home/sessions/<id>.jsonl\": Permission denied (os error 13)",
    );
    fs::set_permissions(&sessions, Permissions::from_mode(0o700)).unwrap();
    // An account without a name is one like any other.
    ask(&["ask", "Two"]).run("").expect_code(0);
}

/// Characters that some readers take for line ends made a stored conversation unreadable; and so did
/// a record larger than a reader's buffer. Both come back byte for byte, in the file and in requests.
#[test]
fn odd_line_ends_and_large_records_come_back_as_they_were() {
    let odd = "a\u{2028}b\u{2029}c\u{85}d\re\u{c}f\u{b}g";
    let large = "é 中 \u{2028}".repeat(5 * 1024 * 1024 / 10);
    let message = |text: &str| {
        format!(
            r#"{{"type":"message","role":"assistant","status":"completed","content":[{{"type":"output_text","text":{}}}]}}"#,
            quoted(text)
        )
    };
    let (first, second) = (
        Reply::new().item(&message(&large)).completed(),
        Reply::new()
            .bash("call_1", &format!("printf %s '{odd}'"))
            .completed(),
    );
    let items = [first.items[0].clone(), second.items[0].clone()];
    let endpoint = Endpoint::start([first, second, text("Understood."), text("Again.")]);
    let home = Home::new(&endpoint);
    let output = home.mino(&["ask", odd]).run("").expect_code(0);
    assert!(output.stdout.len() > 4_000_000);
    approve_all(&home, 1);
    home.ask("Again").expect_code(0);
    let request = endpoint.wait_for_request(4);
    let input = request.input();
    assert_eq!(request.input_values()[0]["content"][0]["text"], odd);
    assert!(input[1] == items[0] && input[3] == items[1]);
    assert_eq!(request.results()[0].1["output"], odd);
    assert_eq!(home.records_of("user_message")[0]["text"], odd);
}

// --- pasting ------------------------------------------------------------------------------------

/// Each line of a paste became a question of its own, and the last ones, `y`, answered the approval
/// that the first had led to. A paste is one message, whole; at the question none of its lines is an
/// answer, not even behind an end mark that it brings along; and what would have to be cut is refused.
#[test]
fn paste_is_one_message_and_no_answer() {
    let lines: Vec<String> = (1..=18)
        .map(|n| format!("line {n}"))
        .chain(["y".into(), "y".into()])
        .collect();
    let message = lines.join("\n");
    let big = "0123456789 ".repeat(100 * 1024 / 11);
    let endpoint = Endpoint::start([
        text("One."),
        text("Two."),
        text("Three."),
        call("call_1", "touch ran"),
        text("Understood."),
    ]);
    let home = Home::new(&endpoint);
    let mut tty = home.chat();
    let typed = message.replace('\n', "\r");
    tty.send(format!("\x1b[200~{typed}\x1b[201~\r"));
    tty.wait_for("One.");
    tty.wait_for("You> ");
    // A terminal that marks nothing.
    tty.send(format!("{typed}\r"));
    tty.wait_for("Two.");
    tty.wait_for("You> ");
    let mut keyboard = tty.keyboard();
    let pasted = format!("\x1b[200~{big}\x1b[201~\r");
    let typing = std::thread::spawn(move || {
        std::io::Write::write_all(&mut keyboard, pasted.as_bytes()).unwrap()
    });
    tty.wait_for("Three.");
    typing.join().unwrap();
    tty.wait_for("You> ");
    tty.send_line("Go");
    for paste in [
        format!("\x1b[200~{typed}\r\x1b[201~"),
        format!("{typed}\r"),
        "\x1b[200~n\x1b[201~\ry\ry\x1b[201~\r".to_owned(),
    ] {
        tty.wait_for(QUESTION);
        tty.send(paste);
        tty.wait_for("Discarded ");
    }
    tty.wait_for(QUESTION);
    tty.send_line("n");
    tty.wait_for("Understood.");
    tty.wait_for("You> ");
    tty.send_line("/exit");
    assert_eq!(tty.wait_exit(), 0);
    assert_eq!(home.work_files(), Vec::<String>::new());
    let asked: Vec<String> = endpoint.requests()[..4].iter().map(question_of).collect();
    assert!(asked == [&*message, &*message, &*big, "Go"], "{asked:?}");

    // The driver keeps 4,095 bytes of a line that it edits itself.
    let endpoint = Endpoint::start([text("Fits.")]);
    let home = Home::new(&endpoint);
    let mut tty = home.mino::<&str>(&[]).env("TERM", "dumb").on_tty(SIZE);
    tty.wait_for("You> ");
    tty.send_line(&"x".repeat(5_000));
    tty.wait_for("mino ask -");
    tty.wait_for("You> ");
    tty.send_line(&"y".repeat(4_000));
    tty.wait_for("Fits.");
    tty.wait_for("You> ");
    tty.send("\x04");
    assert_eq!(tty.wait_exit(), 0);
    assert_eq!(question_of(&endpoint.wait_for_request(1)).len(), 4_000);
}
