//! What is typed, set and found on disk, and what the program makes of it: commands, exit codes,
//! settings, the folder, and every refusal, word for word.

mod support;

use std::ffi::OsString;
use std::fs::{self, File, Permissions};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, UNIX_EPOCH};

use rustix::process::Signal;
use serde_json::{Value, json};
use support::endpoint::{Answer, Endpoint, Reply, Request, call, http_error, text};
use support::home::{Home, KEY, Mino, mode};
use support::tls::{Front, Tunnel};
use support::tty::{Instead, QUESTION, Size, Tty};
use support::{find, probe, read};

/// Wide enough for every line in these tests.
const WIDE: Size = Size {
    rows: 40,
    cols: 240,
};
/// The banner's second line; by then a chat has its conversation open.
const BANNER: &str =
    "Bash commands need your approval. /exit or Ctrl+D leaves; /help lists commands.";
const USAGE_HINT: &str = "hint: `mino help` lists commands and options\n";

// --- help, version, usage -----------------------------------------------------------------------

const HELP: &str = "\
Mino asks a model, and runs the one Bash command it may request only after you approved it.

Commands:
  mino                   chat: continue the current conversation
  mino ask [--] TEXT...  ask one question, then exit; text on standard input is appended
  mino ask -             take the question from standard input
  mino log [ID]          print a conversation with times, commands and results
  mino check [ID]        validate a conversation's file and say what a start would do
  mino sessions          list the conversations; * marks the current one
  mino help              this text; also --help, -h
  mino version           the version; also --version, -V

Options of `mino` and `mino ask`, before the question:
  --new                  start a new conversation and make it current
  --session ID           continue that one and make it current; a unique prefix will do
  --model NAME           the model, for this run
  --base-url URL         the server, for this run

In the chat:
  /help                  this text
  /new                   start a new conversation
  /exit                  leave; so does Ctrl+D on an empty line
  Ctrl+C                 leave at once; a turn in progress is cancelled
  Alt+Enter              a line break in the question; a paste keeps its own
  Up, Down               earlier questions

Files are in ~/.mino (MINO_HOME names another directory): config.json, SOUL.md, sessions/.
";

#[test]
fn help_and_version_need_no_home_and_touch_none() {
    let home = Home::empty();
    let before = home.tree();
    let version = "mino 0.3.0\n";
    for (word, expected) in [
        ("help", HELP),
        ("--help", HELP),
        ("-h", HELP),
        ("version", version),
        ("--version", version),
        ("-V", version),
    ] {
        let mino = || home.mino(&[word]);
        for mino in [
            mino(),
            mino().without_env("MINO_HOME").without_env("HOME"),
            mino().env("MINO_HOME", "relative"),
            mino().env("MINO_BASE_URL", "nonsense"),
        ] {
            let output = mino.run("").expect_code(0);
            assert_eq!((&*output.stdout, &*output.stderr), (expected, ""));
        }
    }
    assert_eq!(home.tree(), before);
}

#[test]
fn call_that_means_nothing_is_refused_with_code_2() {
    let home = Home::empty();
    let before = home.tree();
    let refused = |words: &[OsString], message: &str| {
        let output = home.mino(words).run("text").expect_code(2);
        assert_eq!(output.stdout, "", "{words:?}");
        assert_eq!(output.stderr, format!("mino: {message}\n{USAGE_HINT}"));
    };
    let needs_a_question = "`mino ask` needs a question, or `-` to take it from standard input";
    let exclusive = "--new and --session exclude each other, and each is given once";
    let elsewhere = "options belong to `mino` and `mino ask` only";
    for (line, message) in [
        ("frob", r#"unknown command "frob""#),
        ("Ask Go", r#"unknown command "Ask""#),
        ("\u{202e}", r#"unknown command "\u{202e}""#),
        ("--frob", r#"unknown option "--frob""#),
        ("-v", r#"unknown option "-v""#),
        ("-", r#"unknown option "-""#),
        ("--", r#"unknown option "--""#),
        ("--newer", r#"unknown option "--newer""#),
        (
            "ask --frob Go",
            r#"unknown option "--frob" (put -- before a question that begins so)"#,
        ),
        (
            "ask -x",
            r#"unknown option "-x" (put -- before a question that begins so)"#,
        ),
        ("ask", needs_a_question),
        ("ask --", needs_a_question),
        ("ask --new", needs_a_question),
        ("--session", "--session needs a value"),
        ("ask --model", "--model needs a value"),
        ("--base-url=", "--base-url needs a value"),
        ("--new=yes", "--new takes no value"),
        ("--new --session ab", exclusive),
        ("--session ab ask --session cd Go", exclusive),
        ("--new log", elsewhere),
        ("--model m sessions", elsewhere),
        ("log a b", r#"unexpected argument "b""#),
        ("check a b", r#"unexpected argument "b""#),
        ("sessions a", r#"unexpected argument "a""#),
    ] {
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        refused(&words, message);
    }
    refused(&["ask".into(), "  ".into()], needs_a_question);
    let bytes = OsString::from_vec(b"caf\xe9".to_vec());
    refused(&["ask".into(), bytes], r#"not UTF-8: argument "caf\xe9""#);
    assert_eq!(home.tree(), before);
}

// --- exit codes ---------------------------------------------------------------------------------

fn failing() -> Answer {
    Reply::new().failed("server_error", "It broke")
}

#[test]
fn exit_code_of_ask_says_how_it_went() {
    for (answers, code, end) in [
        (vec![text("Fine.")], 0, "completed"),
        (vec![failing()], 1, "failed"),
        (
            vec![call("call_1", "touch ran"), text("I could not.")],
            3,
            "completed",
        ),
        // A failure outranks the missing terminal.
        (vec![call("call_1", "touch ran"), failing()], 1, "failed"),
    ] {
        let endpoint = Endpoint::start(answers);
        let home = Home::new(&endpoint);
        home.ask("Go").expect_code(code);
        assert_eq!(home.turn_ends(), [end]);
        assert!(home.work_files().is_empty());
        endpoint.assert_all_used();
    }
}

/// A pipe that nobody reads from.
fn closed_pipe() -> Stdio {
    std::io::pipe().expect("a pipe").1.into()
}

/// Runs it with something else as its standard output; the exit code and standard error.
fn run_into(mino: Mino, stdout: Stdio) -> (i32, String) {
    let output = mino
        .command()
        .stdin(Stdio::null())
        .stdout(stdout)
        .stderr(Stdio::piped())
        .output()
        .expect("start the program");
    let stderr = String::from_utf8(output.stderr).expect("UTF-8");
    (output.status.code().unwrap_or(-1), stderr)
}

#[test]
fn closed_output_ends_quietly_with_141_and_the_turn_cancelled() {
    let answer = text("An answer that nobody reads.");
    let endpoint = Endpoint::start([answer, call("call_1", "touch ran")]);
    let home = Home::new(&endpoint);
    let quiet = (141, String::new());
    let ask = || home.mino(&["ask", "Go"]);
    assert_eq!(run_into(ask(), closed_pipe()), quiet);
    // The screen of the chat is gone before it asks for anything.
    assert_eq!(run_into(home.mino::<&str>(&[]), closed_pipe()), quiet);
    assert_eq!(home.turn_ends(), ["cancelled"]);
    for word in ["help", "version", "log", "check", "sessions"] {
        assert_eq!(run_into(home.mino(&[word]), closed_pipe()), quiet, "{word}");
    }
}

// --- settings -----------------------------------------------------------------------------------

/// Whom a request was addressed to and in whose name: model and bearer.
fn address(request: &Request) -> (String, String) {
    let model = request.json()["model"].as_str().unwrap().to_owned();
    let bearer = request.header("authorization").unwrap_or("none");
    (model, bearer.to_owned())
}

#[test]
fn option_outranks_variable_and_variable_outranks_file() {
    let answers = || [text("a"), text("b")];
    let (by_option, by_variable, by_file) = (
        Endpoint::start([text("a")]),
        Endpoint::start(answers()),
        Endpoint::start(answers()),
    );
    let home = Home::empty();
    home.write_config(
        &json!({"base_url": by_file.base_url(), "model": "m-file", "api_key": "k-file"}),
    );
    let config = read(home.config_path());
    let ask = |options: &[&str]| home.mino(&[&["ask"], options, &["Go"]].concat());
    let with_variables = |mino: Mino| {
        mino.env("MINO_BASE_URL", by_variable.base_url())
            .env("MINO_MODEL", "m-variable")
            .env("MINO_API_KEY", "k-variable")
    };
    ask(&[]).run("").expect_code(0);
    // An empty variable is one that isn't set.
    ["MINO_BASE_URL", "MINO_MODEL", "MINO_API_KEY"]
        .iter()
        .fold(ask(&[]), |mino, name| mino.env(name, ""))
        .run("")
        .expect_code(0);
    with_variables(ask(&[])).run("").expect_code(0);
    let url = by_option.base_url();
    with_variables(ask(&["--model", "m-option", "--base-url", &url]))
        .run("")
        .expect_code(0);
    // Each by itself: what isn't given comes from the next place.
    with_variables(ask(&["--model=m-option"]))
        .run("")
        .expect_code(0);

    let sent = |endpoint: &Endpoint| endpoint.requests().iter().map(address).collect::<Vec<_>>();
    let of = |model: &str, key: &str| (model.to_owned(), format!("Bearer {key}"));
    assert_eq!(sent(&by_file), vec![of("m-file", "k-file"); 2]);
    assert_eq!(
        sent(&by_variable),
        [of("m-variable", "k-variable"), of("m-option", "k-variable")]
    );
    assert_eq!(sent(&by_option), [of("m-option", "k-variable")]);
    assert_eq!(read(home.config_path()), config, "for one run only");
}

#[test]
fn options_also_hold_for_the_chat() {
    let endpoint = Endpoint::start([text("a")]);
    let home = Home::empty();
    let url = endpoint.base_url();
    let output = home
        .mino(&["--base-url", &url, "--model", "m"])
        .env("MINO_API_KEY", KEY)
        .run("Go\n")
        .expect_code(0);
    let banner = format!("Mino 0.3.0 · conversation <id> · m at {url}\n");
    assert!(home.tidied(&output.stdout).starts_with(&banner), "{output}");
    assert!(!home.config_path().exists(), "nothing was asked or saved");
}

#[test]
fn base_url_may_be_spelled_in_other_ways() {
    let port = |endpoint: &Endpoint| endpoint.address().port();
    for (spell, path) in [
        (
            &(|port| format!("http://127.0.0.1:{port}/v1//")) as &dyn Fn(u16) -> String,
            "/v1/responses",
        ),
        (&|port| format!("HTTP://LocalHost:{port}"), "/responses"),
        (
            &|port| format!("http://127.0.0.1:{port}/a/b%20c/v1"),
            "/a/b%20c/v1/responses",
        ),
    ] {
        let endpoint = Endpoint::start([text("a")]);
        let home = Home::new(&endpoint);
        let url = spell(port(&endpoint));
        home.mino(&["ask", "--base-url", &url, "Go"])
            .run("")
            .expect_code(0);
        assert_eq!(endpoint.wait_for_request(1).path, path);
    }
}

/// A key for one company's server must not travel to another's because it lay around in the
/// environment. The company's server is played here by one that a proxy leads to, with a
/// certificate of the right name.
#[test]
fn openai_key_counts_for_its_own_server_and_only_without_another() {
    let endpoint = Endpoint::start([text("a"), text("b"), text("c"), text("d")]);
    let front = Front::start(&["api.openai.com"], endpoint.address());
    let tunnel = Tunnel::start(front.address);
    let home = Home::empty();
    let pem = home.home.join("authority.pem");
    fs::write(&pem, &front.pem).unwrap();
    let url = "https://api.openai.com/v1";
    let ask = |mino: Mino| {
        mino.env("OPENAI_API_KEY", "k-openai")
            .env("HTTPS_PROXY", format!("http://{}", tunnel.address))
            .env("SSL_CERT_FILE", &pem)
            .run("")
    };
    let mino = || home.mino(&["ask", "Go"]);
    home.write_config(&json!({"base_url": url, "model": "m"}));
    ask(mino()).expect_code(0);
    // An empty key in the file is no key for a server that needs one.
    home.configure("api_key", "");
    ask(mino()).expect_code(0);
    home.configure("api_key", "k-file");
    ask(mino()).expect_code(0);
    ask(mino().env("MINO_API_KEY", "k-variable")).expect_code(0);
    let bearers: Vec<String> = endpoint.requests().iter().map(|r| address(r).1).collect();
    assert_eq!(
        bearers,
        [
            "Bearer k-openai",
            "Bearer k-openai",
            "Bearer k-file",
            "Bearer k-variable"
        ]
    );

    // Another server is not given it: not where a key is missing, and not where none is needed.
    let other = Endpoint::start([text("a")]);
    home.write_config(&json!({"base_url": other.base_url(), "model": "m"}));
    let output = ask(mino()).expect_code(1);
    assert!(output.stderr.contains("no \"api_key\" is set"), "{output}");
    home.configure("api_key", "");
    ask(mino()).expect_code(0);
    assert_eq!(address(&other.wait_for_request(1)).1, "none");
}

#[test]
fn plain_http_beyond_this_machine_is_for_conversations_without_a_key() {
    let home = Home::empty();
    let config = json!({"base_url": "http://192.0.2.1/v1", "model": "m", "api_key": KEY});
    home.write_config(&config);
    assert_refused(
        &home,
        &|mino| mino,
        "cannot use \"http://192.0.2.1/v1\": a key is sent over plain HTTP to this machine only; use https",
    );
    // Without a key it goes, here through a proxy, and the person is told who may read along.
    let endpoint = Endpoint::start([text("a")]);
    let tunnel = Tunnel::start(endpoint.address());
    home.configure("api_key", "");
    let output = home
        .mino(&["ask", "Go"])
        .env("http_proxy", format!("http://{}", tunnel.address))
        .run("")
        .expect_code(0);
    assert_eq!(
        output.stderr,
        "Notice: the conversation travels unencrypted over plain HTTP.\n"
    );
    endpoint.assert_all_used();
}

#[test]
fn rejected_key_is_traced_to_its_source() {
    let rejected = || http_error("401 Unauthorized", "invalid_api_key", "Incorrect API key");
    let endpoint = Endpoint::start([rejected(), rejected(), rejected()]);
    let home = Home::new(&endpoint);
    let said = |mino: Mino| home.tidied(&mino.run("").expect_code(1).stderr);
    let line = |advice: &str| {
        format!(
            "mino: The server answered 401 (invalid_api_key: Incorrect API key; request req_test_1); {advice}.\n"
        )
    };
    let ask = || home.mino(&["ask", "Go"]);
    assert_eq!(
        said(ask().env("MINO_API_KEY", "k-variable")),
        line("check the API key, which came from MINO_API_KEY")
    );
    assert_eq!(
        said(ask()),
        line("check the API key, which came from \"<root>/mino-home/config.json\"")
    );
    home.configure("api_key", "");
    assert_eq!(
        said(ask()),
        line("set an API key (MINO_API_KEY, or \"api_key\" in config.json)")
    );
    endpoint.assert_all_used();
}

// --- questions about settings -------------------------------------------------------------------

const ASK_URL: &str = "API URL [https://api.openai.com/v1]: ";
const ASK_MODEL: &str = "Model: ";
const ASK_KEY: &str = "API Key (input hidden): ";

fn chat_on_tty(home: &Home) -> Tty {
    home.mino::<&str>(&[]).on_tty(WIDE)
}

#[track_caller]
fn reply_to(tty: &Tty, prompt: &str, reply: &str) {
    tty.wait_for(prompt);
    tty.send_line(reply);
}

#[track_caller]
fn leave(mut tty: Tty) -> Tty {
    tty.wait_for("You> ");
    tty.send_line("/exit");
    tty.wait_for("Goodbye.");
    assert_eq!(tty.wait_exit(), 0);
    tty
}

/// What is in the configuration, and that it is closed to others.
#[track_caller]
fn saved(home: &Home) -> Value {
    assert_eq!(mode(home.config_path()), 0o600);
    assert_eq!(mode(&home.mino_home), 0o700);
    serde_json::from_slice(&read(home.config_path())).expect("a configuration")
}

#[test]
fn missing_settings_are_asked_for_once_and_saved() {
    let endpoint = Endpoint::start([text("Hello.")]);
    let home = Home::empty();
    let before = home.tree();
    let tty = chat_on_tty(&home);
    reply_to(&tty, ASK_URL, &endpoint.base_url());
    reply_to(&tty, ASK_MODEL, "test-model");
    tty.wait_for(ASK_KEY);
    assert_eq!(home.tree(), before, "nothing is saved before all is known");
    tty.send_line(&format!(" {KEY} "));
    reply_to(&tty, "You> ", "Hi");
    tty.wait_for("Hello.");
    let url = endpoint.base_url();
    assert_eq!(
        saved(&home),
        json!({"base_url": url, "model": "test-model", "api_key": KEY})
    );
    assert_eq!(find(&tty.raw(), KEY.as_bytes()), None, "the key was shown");
    let rows = leave(tty).all_rows();
    let screen: Vec<String> = rows.iter().map(|row| home.tidied(row)).collect();
    assert_eq!(
        screen[..5],
        [
            format!("{ASK_URL}{url}"),
            "Model: test-model".into(),
            ASK_KEY.trim_end().into(),
            format!("Mino 0.3.0 · conversation <id> · test-model at {url}"),
            BANNER.into(),
        ]
    );
    let bearer = format!("Bearer {KEY}");
    assert_eq!(
        address(&endpoint.wait_for_request(1)),
        ("test-model".into(), bearer)
    );

    // The second start knows everything.
    let shown = leave(chat_on_tty(&home)).plain();
    assert!(shown.starts_with("Mino 0.3.0"), "{shown}");
}

#[test]
fn only_what_is_missing_is_asked_for_and_the_rest_is_kept() {
    let endpoint = Endpoint::start([]);
    let url = endpoint.base_url();
    let all = json!({
        "base_url": url, "model": "m", "api_key": "k", "path": "/usr/bin:/bin", "idle_timeout_seconds": 7,
    });
    for (field, prompt, reply) in [
        ("base_url", ASK_URL, &*url),
        ("model", ASK_MODEL, "m"),
        ("api_key", ASK_KEY, "k"),
    ] {
        let home = Home::empty();
        let mut config = all.clone();
        config.as_object_mut().unwrap().remove(field);
        home.write_config(&config);
        let tty = chat_on_tty(&home);
        reply_to(&tty, prompt, reply);
        let shown = leave(tty).plain();
        assert_eq!(shown.matches(": ").count(), 1, "one question: {shown}");
        assert_eq!(saved(&home), all);
    }
}

#[test]
fn what_a_variable_says_is_neither_asked_for_nor_saved() {
    let endpoint = Endpoint::start([]);
    let home = Home::empty();
    let tty = home
        .mino::<&str>(&[])
        .env("MINO_BASE_URL", endpoint.base_url())
        .env("MINO_API_KEY", KEY)
        .on_tty(WIDE);
    reply_to(&tty, ASK_MODEL, "m");
    leave(tty);
    assert_eq!(saved(&home), json!({"model": "m"}));
}

#[test]
fn answer_that_cannot_be_used_is_asked_for_again() {
    let endpoint = Endpoint::start([text("Hello.")]);
    let home = Home::empty();
    let tty = chat_on_tty(&home);
    for (url, why) in [
        (
            "localhost:8080",
            "mino: \"localhost:8080\" is no URL that begins with https:// or http://",
        ),
        (
            "https://user:secret@host/v1",
            "mino: \"https://user:secret@host/v1\" holds user info; a key belongs into api_key",
        ),
    ] {
        reply_to(&tty, ASK_URL, url);
        tty.wait_for(why);
    }
    reply_to(&tty, ASK_URL, &endpoint.base_url());
    reply_to(&tty, ASK_MODEL, " ");
    tty.wait_for("mino: a model must be named; there is no default");
    reply_to(&tty, ASK_MODEL, "m");
    reply_to(&tty, ASK_KEY, "clé");
    tty.wait_for("mino: a key is visible ASCII without blanks");
    reply_to(&tty, ASK_KEY, "");
    reply_to(&tty, "You> ", "Hi");
    tty.wait_for("Hello.");
    leave(tty);
    assert_eq!(
        saved(&home),
        json!({"base_url": endpoint.base_url(), "model": "m", "api_key": ""})
    );
    assert_eq!(address(&endpoint.wait_for_request(1)).1, "none");
}

#[test]
fn enter_takes_the_offered_server_which_needs_a_key() {
    let home = Home::empty();
    let tty = chat_on_tty(&home);
    reply_to(&tty, ASK_URL, "");
    reply_to(&tty, ASK_MODEL, "m");
    reply_to(&tty, ASK_KEY, "");
    tty.wait_for("mino: this server needs a key");
    reply_to(&tty, ASK_KEY, KEY);
    leave(tty);
    assert_eq!(
        saved(&home),
        json!({"base_url": "https://api.openai.com/v1", "model": "m", "api_key": KEY})
    );
}

/// The settings of a terminal that nobody has touched.
fn untouched_termios() -> String {
    let mut tty = Tty::start(WIDE, &Command::new("true"));
    assert_eq!(tty.wait_exit(), 0);
    tty.termios()
}

#[test]
fn leaving_the_questions_saves_nothing_and_restores_the_terminal() {
    let untouched = untouched_termios();
    let replies = ["http://127.0.0.1:9/v1", "m"];
    let prompts = [ASK_URL, ASK_MODEL, ASK_KEY];
    for term in ["xterm", "dumb"] {
        for last in 0..prompts.len() {
            // Ctrl+C, a signal, and the end of the input, which is no signal and no answer.
            for (way, code) in [("\x03", 130), ("TERM", 143), ("\x04", 1)] {
                let home = Home::empty();
                let before = home.tree();
                let mut tty = home.mino::<&str>(&[]).env("TERM", term).on_tty(WIDE);
                for number in 0..last {
                    reply_to(&tty, prompts[number], replies[number]);
                }
                tty.wait_for(prompts[last]);
                match way {
                    "TERM" => tty.signal(Signal::TERM),
                    key => tty.send(key),
                }
                assert_eq!(tty.wait_exit(), code, "{term} {last} {way:?}");
                assert_eq!(home.tree(), before);
                assert_eq!(tty.termios(), untouched);
            }
        }
    }
}

#[test]
fn questions_of_ask_leave_its_output_alone() {
    let endpoint = Endpoint::start([text("Hello.")]);
    let home = Home::empty();
    let out = home.home.join("out");
    let instead = Instead {
        stdout: Some(File::create(&out).unwrap().into()),
        ..Instead::default()
    };
    let mut tty = Tty::start_with(WIDE, &home.mino(&["ask", "Hi"]).command(), instead);
    reply_to(&tty, ASK_URL, &endpoint.base_url());
    reply_to(&tty, ASK_MODEL, "m");
    reply_to(&tty, ASK_KEY, KEY);
    assert_eq!(tty.wait_exit(), 0);
    assert_eq!(read(&out), b"Hello.\n");
    assert_eq!(find(&tty.raw(), KEY.as_bytes()), None);
}

/// Those who keep their settings elsewhere have a link here, and want to keep it.
#[test]
fn saving_goes_through_a_link_and_keeps_it() {
    let endpoint = Endpoint::start([]);
    let home = Home::empty();
    let kept = home.home.join("dotfiles.json");
    home.write_config(&json!({"base_url": endpoint.base_url(), "api_key": KEY}));
    fs::rename(home.config_path(), &kept).unwrap();
    symlink(&kept, home.config_path()).unwrap();
    let tty = chat_on_tty(&home);
    reply_to(&tty, ASK_MODEL, "m");
    leave(tty);
    assert!(home.config_path().is_symlink());
    let config: Value = serde_json::from_slice(&read(&kept)).unwrap();
    assert_eq!((&config["model"], mode(&kept)), (&json!("m"), 0o600));
}

#[test]
fn missing_setting_is_an_error_where_nobody_can_be_asked() {
    let all = json!({"base_url": "http://127.0.0.1:9/v1", "model": "m", "api_key": ""});
    for (field, how) in [
        ("base_url", "set MINO_BASE_URL or --base-url"),
        ("model", "set MINO_MODEL or --model"),
        (
            "api_key",
            "put \"api_key\" there (\"\" for a server that needs none)",
        ),
    ] {
        let message = format!(
            "no \"{field}\" is set, and \"<root>/mino-home/config.json\" has none\n\
             hint: run `mino` in a terminal to be asked, or {how}"
        );
        let home = settled();
        let mut config = all.clone();
        config.as_object_mut().unwrap().remove(field);
        home.write_config(&config);
        assert_refused(&home, &|mino| mino, &message);
    }
    // An empty text is no server and no model.
    for (field, message) in [
        ("base_url", "no \"base_url\" is set"),
        ("model", "no \"model\" is set"),
    ] {
        let home = settled();
        home.write_config(&all);
        home.configure(field, "");
        let output = home.ask("Go").expect_code(1);
        assert!(output.stderr.contains(message), "{output}");
    }
    // Nothing at all is there, and nothing is made.
    let message = "no \"base_url\" is set, and \"<root>/mino-home/config.json\" has none\n\
                   hint: run `mino` in a terminal to be asked, or set MINO_BASE_URL or --base-url";
    assert_refused(&Home::empty(), &|mino| mino, message);
}

// --- refusals -----------------------------------------------------------------------------------

const FIRST: &str = "0f0e0d0c0b0a09080706050403020100";
const SECOND: &str = "0f0e0d0c11111111111111111111ffff";

/// One turn with a command, and one that failed.
fn journal() -> String {
    let record = |seq: u32, time: &str, turn: u32, rest: &str| {
        format!(
            "{{\"v\":2,\"seq\":{seq},\"time\":\"2026-01-02T03:04:{time}Z\",\"turn_id\":\"{turn:032}\",{rest}}}\n"
        )
    };
    let call = r#"{"type":"function_call","id":"fc_1","status":"completed","call_id":"call_1","name":"bash","arguments":"{\"command\":\"ls -1\"}"}"#;
    let message = r#"{"type":"message","role":"assistant","status":"completed","content":[{"type":"output_text","text":"Two files."}]}"#;
    [
        record(1, "05.000", 1, r#""kind":"user_message","text":"What is \u001b[1mhere?\r\nAll of it.""#),
        record(2, "06.250", 1, &format!(r#""kind":"model_response","text":"I look.","output":[{call}]"#)),
        record(3, "08.000", 1, r#""kind":"tool_start","call_id":"call_1","name":"bash","arguments":"{\"command\":\"ls -1\"}","cwd":"/srv/\u202ework""#),
        record(4, "09.960", 1, r#""kind":"tool_result","call_id":"call_1","result":{"status":"completed","output":"a\nb\u0007\n","exit_code":0}"#),
        record(5, "10.000", 1, &format!(r#""kind":"model_response","text":"Two files.","output":[{message}]"#)),
        record(6, "10.100", 1, r#""kind":"turn_end","status":"completed""#),
        record(7, "20.000", 2, r#""kind":"user_message","text":"And now?""#),
        record(8, "21.000", 2, r#""kind":"turn_end","status":"failed""#),
    ]
    .concat()
}

fn set_mode(path: impl AsRef<Path>, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).expect("a new mode");
}

/// A home with one conversation. Others may read all of it and there is no `SOUL.md`: a start
/// changes both, so a start that is refused too late is seen.
fn settled() -> Home {
    let home = Home::empty();
    home.write_config(&json!({"base_url": "http://127.0.0.1:9/v1", "model": "m", "api_key": KEY}));
    let sessions = home.mino_home.join("sessions");
    fs::create_dir(&sessions).unwrap();
    fs::write(home.journal_path_of(FIRST), journal()).unwrap();
    let pointer = home.mino_home.join("active-session.json");
    fs::write(&pointer, format!("{{\"session_id\":\"{FIRST}\"}}\n")).unwrap();
    for folder in [&home.mino_home, &sessions] {
        set_mode(folder, 0o755);
    }
    for file in [home.config_path(), home.journal_path_of(FIRST), pointer] {
        set_mode(file, 0o644);
    }
    home
}

/// Refused in these words, by the chat and by `ask`, and nothing on disk is another than before.
#[track_caller]
fn assert_refused(home: &Home, set: &dyn Fn(Mino) -> Mino, message: &str) {
    let before = home.tree();
    for arguments in [&[][..], &["ask", "Go"]] {
        let output = set(home.mino(arguments)).run("").expect_code(1);
        assert_eq!(output.stdout, "");
        assert_eq!(home.tidied(&output.stderr), format!("mino: {message}\n"));
        assert!(!output.stderr.contains(KEY));
    }
    assert_eq!(home.tree(), before);
}

#[test]
fn configuration_that_cannot_be_used_is_refused_with_file_and_field() {
    let too_big = vec![b' '; 64 * 1024 + 1];
    for (content, why) in [
        (&b"{\"model\": "[..], "it is not JSON (line 1, column 10)"),
        (b"", "it is not JSON (line 1, column 0)"),
        (b"\xff\xfe{}", "it is not JSON (line 1, column 1)"),
        (b"{} {}", "it is not JSON (line 1, column 4)"),
        (b"[]", "it is not a JSON object (line 1, column 0)"),
        (b"{\"modell\":\"m\"}", "field \"modell\" is unknown"),
        (b"{\"base_url\":1}", "field \"base_url\" must be a string"),
        (b"{\"model\":null}", "field \"model\" must be a string"),
        (b"{\"api_key\":[]}", "field \"api_key\" must be a string"),
        (b"{\"path\":true}", "field \"path\" must be a string"),
        (
            b"{\"path\":\"/bin\\u0000\"}",
            "field \"path\" holds a NUL character",
        ),
        (
            b"{\"idle_timeout_seconds\":\"9\"}",
            "field \"idle_timeout_seconds\" must be a whole number from 1 to 86400",
        ),
        (
            b"{\"idle_timeout_seconds\":0}",
            "field \"idle_timeout_seconds\" must be a whole number from 1 to 86400",
        ),
        (
            b"{\"idle_timeout_seconds\":1.5}",
            "field \"idle_timeout_seconds\" must be a whole number from 1 to 86400",
        ),
        (
            b"{\"api_key\":\"sk-test-0123456789abcdef\\nx\"}",
            "field \"api_key\": a key is visible ASCII without blanks",
        ),
    ] {
        let home = settled();
        fs::write(home.config_path(), content).unwrap();
        let message = format!("cannot use \"<root>/mino-home/config.json\": {why}");
        assert_refused(&home, &|mino| mino, &message);
    }
    let home = settled();
    fs::write(home.config_path(), too_big).unwrap();
    let message = "cannot read \"<root>/mino-home/config.json\": it is larger than 65536 bytes";
    assert_refused(&home, &|mino| mino, message);
}

#[test]
fn base_url_that_cannot_be_used_is_refused_with_its_source() {
    for (url, why) in [
        (
            "api.example.com/v1",
            "is no URL that begins with https:// or http://",
        ),
        (
            "ftp://example.com",
            "is no URL that begins with https:// or http://",
        ),
        (
            "https://user:pass@example.com/v1",
            "holds user info; a key belongs into api_key",
        ),
        ("https:///v1", "has no valid host and port"),
        ("https://example.com:0/v1", "has no valid host and port"),
        ("https://example.com:70000/v1", "has no valid host and port"),
        (
            "https://example.com/v1?x=1",
            "has a query or fragment; the base URL is only the prefix, usually ending in /v1",
        ),
        (
            "https://example.com/v1#x",
            "has a query or fragment; the base URL is only the prefix, usually ending in /v1",
        ),
        (
            "https://exam ple.com",
            "holds a character that a URL can't hold",
        ),
    ] {
        let home = settled();
        let of_variable = format!("cannot use MINO_BASE_URL: \"{url}\" {why}");
        let by_variable = |mino: Mino| mino.env("MINO_BASE_URL", url);
        assert_refused(&home, &by_variable, &of_variable);
        home.configure("base_url", url);
        let of_file = format!(
            "cannot use field \"base_url\" of \"<root>/mino-home/config.json\": \"{url}\" {why}"
        );
        assert_refused(&home, &|mino| mino, &of_file);
        let output = home.mino(&["ask", "--base-url", url, "Go"]).run("");
        let of_option = format!("mino: cannot use --base-url: \"{url}\" {why}\n");
        assert_eq!(output.expect_code(1).stderr, of_option);
    }
}

#[test]
fn variable_that_cannot_be_used_is_refused_by_name() {
    let home = settled();
    let https = |mino: Mino| mino.env("MINO_BASE_URL", "https://example.com/v1");
    for (name, value, message) in [
        (
            "MINO_MODEL",
            OsString::from_vec(vec![0xff]),
            "cannot use MINO_MODEL: it is not UTF-8",
        ),
        (
            "MINO_API_KEY",
            "sk-test-0123456789abcdef é".into(),
            "cannot use MINO_API_KEY: a key is visible ASCII without blanks",
        ),
        (
            "HTTPS_PROXY",
            "socks5://user:sk-test-0123456789abcdef@127.0.0.1:1".into(),
            "Cannot prepare requests: HTTPS_PROXY is no URL of an HTTP or HTTPS proxy, and other kinds can't be used; correct or unset it.",
        ),
        (
            "all_proxy",
            "http://".into(),
            "Cannot prepare requests: all_proxy is no URL of an HTTP or HTTPS proxy, and other kinds can't be used; correct or unset it.",
        ),
        (
            "SSL_CERT_FILE",
            "/nonexistent.pem".into(),
            "cannot use SSL_CERT_FILE=\"/nonexistent.pem\": no such file",
        ),
        (
            "SSL_CERT_FILE",
            "/dev/null".into(),
            "cannot use SSL_CERT_FILE=\"/dev/null\": it is not a regular file",
        ),
    ] {
        assert_refused(&home, &|mino| https(mino).env(name, &value), message);
    }
}

#[test]
fn authorities_that_are_none_are_refused_with_the_file() {
    let home = settled();
    let pem = home.home.join("roots.pem");
    for (content, why) in [
        (&b""[..], "holds no certificate"),
        (b"not a certificate\n", "holds no certificate"),
        (
            b"-----BEGIN CERTIFICATE-----\nnot base64!\n-----END CERTIFICATE-----\n",
            "is no proper PEM file",
        ),
    ] {
        fs::write(&pem, content).unwrap();
        let set = |mino: Mino| {
            mino.env("MINO_BASE_URL", "https://example.com/v1")
                .env("SSL_CERT_FILE", &pem)
        };
        let message = format!(
            "Cannot prepare requests: SSL_CERT_FILE names \"<root>/home/roots.pem\", which {why}; name another or unset it."
        );
        assert_refused(&home, &set, &message);
    }
}

#[test]
fn soul_that_cannot_be_used_is_refused() {
    for (content, why) in [
        (vec![], "it is empty; remove it to get the default back"),
        (
            b" \n\t\n".to_vec(),
            "it is empty; remove it to get the default back",
        ),
        (b"caf\xe9".to_vec(), "it is not UTF-8"),
    ] {
        let home = settled();
        fs::write(home.mino_home.join("SOUL.md"), content).unwrap();
        let message = format!("cannot use \"<root>/mino-home/SOUL.md\": {why}");
        assert_refused(&home, &|mino| mino, &message);
    }
    let home = settled();
    fs::write(home.mino_home.join("SOUL.md"), "x".repeat(64 * 1024 + 1)).unwrap();
    let message = "cannot read \"<root>/mino-home/SOUL.md\": it is larger than 65536 bytes";
    assert_refused(&home, &|mino| mino, message);
}

#[test]
fn soul_of_exactly_64_kib_is_sent() {
    let endpoint = Endpoint::start([text("a")]);
    let home = Home::new(&endpoint);
    let soul = "é".repeat(32 * 1024);
    fs::write(home.mino_home.join("SOUL.md"), &soul).unwrap();
    home.ask("Go").expect_code(0);
    let body = endpoint.wait_for_request(1).json();
    assert!(body["instructions"].as_str().unwrap().starts_with(&soul));
}

/// What else can lie where a file or folder belongs.
#[derive(Clone, Copy, Debug)]
enum Odd {
    Folder,
    Fifo,
    /// To a proper file or folder elsewhere.
    Link,
    File,
}

impl Odd {
    /// Puts it in the place of what is at `path`.
    fn replace(self, home: &Home, path: &Path) {
        let kept = home.home.join("kept");
        let _ = fs::rename(path, &kept);
        match self {
            Odd::Folder => fs::create_dir(path).unwrap(),
            Odd::Fifo => rustix::fs::mknodat(
                rustix::fs::CWD,
                path,
                rustix::fs::FileType::Fifo,
                rustix::fs::Mode::from_raw_mode(0o600),
                0,
            )
            .unwrap(),
            Odd::Link => symlink(&kept, path).unwrap(),
            Odd::File => fs::write(path, "x").unwrap(),
        }
    }
}

/// A link could make a conversation land in any file, and opening a FIFO would wait for ever.
#[test]
fn odd_things_where_files_belong_are_refused() {
    let irregular = "it is not a regular file";
    let link = "it is a symbolic link";
    let journal = &*format!("sessions/{FIRST}.jsonl");
    for (name, odd, deed, why) in [
        ("config.json", Odd::Folder, "read", irregular),
        ("config.json", Odd::Fifo, "read", irregular),
        ("SOUL.md", Odd::Folder, "read", irregular),
        ("SOUL.md", Odd::Fifo, "read", irregular),
        ("active-session.json", Odd::Folder, "read", irregular),
        ("active-session.json", Odd::Fifo, "read", irregular),
        ("active-session.json", Odd::Link, "read", link),
        (journal, Odd::Folder, "open", irregular),
        (journal, Odd::Fifo, "open", irregular),
        (journal, Odd::Link, "open", link),
        ("sessions", Odd::Link, "list", link),
        (
            "sessions",
            Odd::File,
            "list",
            "Not a directory (os error 20)",
        ),
    ] {
        let home = settled();
        odd.replace(&home, &home.mino_home.join(name));
        let name = name.replace(FIRST, "<id>");
        let message = format!("cannot {deed} \"<root>/mino-home/{name}\": {why}");
        if name == "sessions" {
            // Then the pointer leads nowhere, which is looked at first.
            fs::remove_file(home.mino_home.join("active-session.json")).unwrap();
        }
        assert_refused(&home, &|mino| mino, &message);
    }
}

/// The folder, the settings and the instructions may be links, and stay links.
#[test]
fn links_of_dotfile_managers_are_followed() {
    let endpoint = Endpoint::start([text("a")]);
    let home = Home::new(&endpoint);
    let elsewhere = |name: &str| home.home.join(name);
    fs::write(elsewhere("SOUL"), "Speak like a pirate.").unwrap();
    fs::rename(home.config_path(), elsewhere("config")).unwrap();
    symlink(elsewhere("config"), home.config_path()).unwrap();
    symlink(elsewhere("SOUL"), home.mino_home.join("SOUL.md")).unwrap();
    fs::rename(&home.mino_home, elsewhere("folder")).unwrap();
    symlink(elsewhere("folder"), &home.mino_home).unwrap();
    set_mode(elsewhere("folder"), 0o755);
    home.ask("Go").expect_code(0);
    let body = endpoint.wait_for_request(1).json();
    let instructions = body["instructions"].as_str().unwrap();
    assert!(instructions.starts_with("Speak like a pirate.\n\n"));
    for link in [
        &home.mino_home,
        &home.config_path(),
        &home.mino_home.join("SOUL.md"),
    ] {
        assert!(link.is_symlink());
    }
    assert_eq!(mode(elsewhere("folder")), 0o700);
    assert_eq!(mode(elsewhere("config")), 0o600);
}

/// Other programs took the working directory where there was no home.
#[test]
fn home_that_is_none_is_refused_and_nothing_is_made_anywhere() {
    let home = Home::empty();
    fs::write(home.root().join("file"), "x").unwrap();
    let hint = "\nhint: set HOME, or MINO_HOME, to an existing absolute path";
    let missing = home.root().join("missing");
    let file = home.root().join("file");
    for (value, why) in [
        (None, "HOME is not set".to_owned()),
        (Some("".as_ref()), "HOME is not set".to_owned()),
        (
            Some("work".as_ref()),
            "HOME is \"work\", not an absolute path".to_owned(),
        ),
        (
            Some(&*missing),
            "HOME is \"<root>/missing\", not an existing directory".to_owned(),
        ),
        (
            Some(&*file),
            "HOME is \"<root>/file\", not an existing directory".to_owned(),
        ),
    ] {
        let set = |mino: Mino| {
            let mino = mino.without_env("MINO_HOME").without_env("HOME");
            match value {
                Some(value) => mino.env("HOME", value),
                None => mino,
            }
        };
        let message = format!("cannot find a home directory: {why}{hint}");
        assert_refused(&home, &set, &message);
        let output = set(home.mino(&["sessions"])).run("").expect_code(1);
        assert_eq!(home.tidied(&output.stderr), format!("mino: {message}\n"));
    }
    let relative = |mino: Mino| mino.env("MINO_HOME", "work");
    let message =
        format!("cannot find a home directory: MINO_HOME is \"work\", not an absolute path{hint}");
    assert_refused(&home, &relative, &message);
    // A file, and a folder whose parent isn't there.
    let given = |mino: Mino| {
        mino.env("MINO_BASE_URL", "http://127.0.0.1:9")
            .env("MINO_MODEL", "m")
            .env("MINO_API_KEY", KEY)
    };
    let message = "cannot read \"<root>/file/config.json\": Not a directory (os error 20)";
    assert_refused(&home, &|mino| given(mino).env("MINO_HOME", &file), message);
    let message =
        "cannot prepare the folder \"<root>/missing/mino\": No such file or directory (os error 2)";
    let nested = missing.join("mino");
    assert_refused(
        &home,
        &|mino| given(mino).env("MINO_HOME", &nested),
        message,
    );
}

#[test]
fn folder_is_dot_mino_in_home_unless_named() {
    let endpoint = Endpoint::start([text("a")]);
    let home = Home::empty();
    home.mino(&[
        "ask",
        "--base-url",
        &endpoint.base_url(),
        "--model",
        "m",
        "Go",
    ])
    .env("MINO_API_KEY", KEY)
    .without_env("MINO_HOME")
    .run("")
    .expect_code(0);
    let made = home.home.join(".mino");
    let mut names: Vec<_> = fs::read_dir(&made)
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    names.sort();
    assert_eq!(names, ["SOUL.md", "active-session.json", "sessions"]);
    assert!(!home.mino_home.exists() && home.work_files().is_empty());
}

#[test]
fn second_process_on_a_conversation_is_refused_before_anything_is_written() {
    let endpoint = Endpoint::start([]);
    let home = Home::new(&endpoint);
    let tty = chat_on_tty(&home);
    tty.wait_for(BANNER);
    let message = "conversation <id> is in use by another Mino\n\
                   hint: Leave it there first, or start another conversation with --new.";
    assert_refused(&home, &|mino| mino, message);
    leave(tty);
}

// --- which conversation -------------------------------------------------------------------------

fn pointer_path(home: &Home) -> std::path::PathBuf {
    home.mino_home.join("active-session.json")
}

#[test]
fn pointer_names_the_conversation_and_follows_the_choice() {
    let endpoint = Endpoint::start((0..6).map(|_| text("a")));
    let home = Home::new(&endpoint);
    home.ask("One").expect_code(0);
    let first = home.only_session();
    assert_eq!(
        String::from_utf8(read(pointer_path(&home)))
            .unwrap()
            .trim_end(),
        format!("{{\"session_id\":\"{first}\"}}")
    );
    assert_eq!(mode(pointer_path(&home)), 0o600);
    home.ask("Two").expect_code(0);
    assert_eq!(home.pointer(), first);
    // A new one becomes the current one, also where it isn't the last to be made.
    home.mino(&["--new"]).run("Three\n").expect_code(0);
    let second = home.pointer();
    assert_ne!(second, first);
    home.ask("Four").expect_code(0);
    let named = ["ask", "--session", &first];
    home.mino(&[&named[..], &["Five"]].concat())
        .run("")
        .expect_code(0);
    assert_eq!(home.pointer(), first);
    let named = format!("--session={}", &second[..12]);
    home.mino(&[&*named]).run("Six\n").expect_code(0);
    assert_eq!(home.pointer(), second);

    let questions = |id: &str| -> Vec<String> {
        let text = String::from_utf8(read(home.journal_path_of(id))).unwrap();
        let records = text
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).unwrap());
        records
            .filter_map(|record| Some(record.get("text")?.as_str()?.to_owned()))
            .filter(|text| text != "a")
            .collect()
    };
    assert_eq!(questions(&first), ["One", "Two", "Five"]);
    assert_eq!(questions(&second), ["Three", "Four", "Six"]);
}

/// Where conversations exist, none is begun and none is picked without being told to.
#[test]
fn pointer_that_is_lost_is_asked_for_and_never_guessed() {
    let hint = "\nhint: Choose a conversation with --session ID (`mino sessions` lists them) or start one with --new.";
    for (content, what) in [
        (None, "is missing"),
        (Some(String::new()), "is damaged"),
        (Some("{\"session_id\":".into()), "is damaged"),
        (Some("{}".into()), "is damaged"),
        (Some("{\"session_id\":7}".into()), "is damaged"),
        (
            Some(format!("{{\"session_id\":\"{}\"}}", &FIRST[1..])),
            "is damaged",
        ),
        (
            Some(format!("{{\"session_id\":\"{}\"}}", FIRST.to_uppercase())),
            "is damaged",
        ),
        (
            Some(format!("{{\"session_id\":\"../{FIRST}\"}}")),
            "is damaged",
        ),
        (
            Some(format!("{{\"session_id\":\"{SECOND}\"}}")),
            "names a conversation that does not exist",
        ),
    ] {
        let home = settled();
        match content {
            Some(content) => fs::write(pointer_path(&home), content).unwrap(),
            None => fs::remove_file(pointer_path(&home)).unwrap(),
        }
        let message = format!(
            "cannot tell the current conversation: \"<root>/mino-home/active-session.json\" {what}{hint}"
        );
        assert_refused(&home, &|mino| mino, &message);
        for word in ["log", "check"] {
            let output = home.mino(&[word]).run("").expect_code(1);
            assert_eq!(home.tidied(&output.stderr), format!("mino: {message}\n"));
        }
        // Told so, it goes on.
        home.mino(&["--session", &FIRST[..4]])
            .run("")
            .expect_code(0);
        assert_eq!(home.pointer(), FIRST);
    }
    let home = settled();
    fs::remove_file(pointer_path(&home)).unwrap();
    home.mino(&["--new"]).run("").expect_code(0);
    assert_ne!(home.pointer(), FIRST);
}

#[test]
fn prefix_names_a_conversation_if_it_is_the_only_one() {
    let home = settled();
    fs::write(home.journal_path_of(SECOND), journal()).unwrap();
    // A copy that a recovery made is no conversation.
    let copy = format!("sessions/{FIRST}-recovery-1.jsonl");
    fs::write(home.mino_home.join(copy), journal()).unwrap();
    let lists = "hint: `mino sessions` lists the conversations.";
    for (prefix, message) in [
        (
            "0f0e0d0c",
            "the IDs of 2 conversations begin with \"0f0e0d0c\"\nhint: Give more of the ID; `mino sessions` lists them.".to_owned(),
        ),
        ("0f0e0d0c2", format!("no conversation's ID begins with \"0f0e0d0c2\"\n{lists}")),
        ("0F0E0D0C0B", format!("no conversation's ID begins with \"0F0E0D0C0B\"\n{lists}")),
        ("../sessions", format!("no conversation's ID begins with \"../sessions\"\n{lists}")),
        ("", format!("no conversation's ID begins with \"\"\n{lists}")),
    ] {
        let before = home.tree();
        let mut calls = vec![vec!["log", prefix], vec!["check", prefix]];
        if !prefix.is_empty() {
            calls.extend([vec!["--session", prefix], vec!["ask", "--session", prefix, "Go"]]);
        }
        for call in calls {
            let output = home.mino(&call).run("").expect_code(1);
            assert_eq!((&*output.stdout, &*output.stderr), ("", &*format!("mino: {message}\n")));
        }
        assert_eq!(home.tree(), before);
    }
    for prefix in ["0f0e0d0c1", SECOND] {
        home.mino(&["--session", prefix]).run("").expect_code(0);
        assert_eq!(home.pointer(), SECOND);
    }
}

// --- commands that only read --------------------------------------------------------------------

const LOG: &str = "\
Conversation 0f0e0d0c0b0a09080706050403020100

2026-01-02T03:04:05.000Z You> What is [1mhere?
    All of it.
2026-01-02T03:04:06.250Z Assistant> I look.
    [Tool: bash] \"ls -1\"
2026-01-02T03:04:08.000Z Approved and started in \"/srv/\\u{202e}work\"
2026-01-02T03:04:09.960Z [Tool result: completed; exit code 0] after 1.9 s
    a
    b
2026-01-02T03:04:10.000Z Assistant> Two files.
2026-01-02T03:04:10.100Z Turn completed after 5.1 s

2026-01-02T03:04:20.000Z You> And now?
2026-01-02T03:04:21.000Z Turn failed after 1.0 s

";

/// Runs it to its end, which must be good, and answers standard output.
#[track_caller]
fn printed(mino: Mino) -> String {
    let output = mino.run("").expect_code(0);
    assert_eq!(output.stderr, "");
    output.stdout
}

/// Looks at everything in every reading way.
#[track_caller]
fn assert_readable(home: &Home, wrap: &dyn Fn(Mino) -> Mino) {
    let before = home.tree();
    let printed = |arguments: &[&str]| printed(wrap(home.mino(arguments)));
    for arguments in [&["log"][..], &["log", FIRST], &["log", &FIRST[..3]]] {
        assert_eq!(printed(arguments), LOG);
    }
    let sound = format!("Conversation {FIRST}\nThe journal's 8 records are sound.\n");
    assert_eq!(printed(&["check"]), sound);
    assert_eq!(printed(&["check", FIRST]), sound);
    let row = format!("* {FIRST}  <time>  2 turns\n");
    let row = row.replace(FIRST, "<id>");
    assert_eq!(home.tidied(&printed(&["sessions"])), row);
    assert_eq!(home.tree(), before);
}

#[test]
fn reading_commands_print_the_whole_and_change_nothing() {
    assert_readable(&settled(), &|mino| mino);
}

#[test]
fn reading_commands_need_no_settings_and_no_network() {
    let home = settled();
    fs::write(home.config_path(), "no JSON at all").unwrap();
    fs::write(home.mino_home.join("SOUL.md"), [0xff]).unwrap();
    assert_readable(&home, &|mino| mino.env("MINO_BASE_URL", "nonsense"));
}

#[test]
fn reading_commands_work_while_another_process_holds_the_conversation() {
    let home = settled();
    let tty = chat_on_tty(&home);
    tty.wait_for(BANNER);
    assert_readable(&home, &|mino| mino);
    leave(tty);
}

/// On a disk that can't be written, such as a backup, the conversations can still be read.
#[test]
fn reading_commands_work_on_a_read_only_disk() {
    let home = settled();
    let script = r#"mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && exec "$@""#;
    let root = home.root().to_str().unwrap().to_owned();
    let wrapper = ["unshare", "-m", "sh", "-c", script, &root];
    let is_read_only = ["sh", "-c", "! touch \"$0/x\"", &root];
    if probe(&[&wrapper[..], &is_read_only].concat()) != Some(0) {
        eprintln!("SKIPPED: reading on a read-only disk: it takes unshare, mount and root");
        return;
    }
    assert_readable(&home, &|mino| mino.through(&wrapper));
}

#[test]
fn list_of_conversations_begins_with_the_last_changed() {
    let home = settled();
    let turn = journal().lines().take(6).collect::<Vec<_>>().join("\n");
    fs::write(home.journal_path_of(SECOND), turn + "\n").unwrap();
    let copy = format!("sessions/{FIRST}-recovery-1.jsonl");
    fs::write(home.mino_home.join(copy), journal()).unwrap();
    fs::write(home.mino_home.join("sessions/notes.txt"), "x").unwrap();
    for (id, seconds) in [(FIRST, 1_767_323_045), (SECOND, 1_767_323_045 + 86_400)] {
        let file = File::options().write(true).open(home.journal_path_of(id));
        let time = UNIX_EPOCH + Duration::from_secs(seconds);
        file.unwrap().set_modified(time).unwrap();
    }
    assert_eq!(
        printed(home.mino(&["sessions"])),
        format!(
            "  {SECOND}  2026-01-03T03:04:05.000Z  1 turns\n* {FIRST}  2026-01-02T03:04:05.000Z  2 turns\n"
        )
    );
    // Without a pointer there is no current one, and the list is how one finds another.
    fs::remove_file(pointer_path(&home)).unwrap();
    let rows = printed(home.mino(&["sessions"]));
    assert!(rows.lines().count() == 2 && !rows.contains('*'), "{rows}");
}

#[test]
fn without_conversations_there_is_nothing_to_read() {
    let home = Home::empty();
    let before = home.tree();
    assert_eq!(printed(home.mino(&["sessions"])), "");
    for word in ["log", "check"] {
        let output = home.mino(&[word]).run("").expect_code(1);
        assert_eq!(output.stdout, "");
        let message = "mino: there is no conversation yet\nhint: `mino` starts one\n";
        assert_eq!(output.stderr, message);
    }
    assert_eq!(home.tree(), before);
}

/// What a start will do is said beforehand; and then it does that.
#[test]
fn check_says_what_a_start_would_do() {
    let lines: Vec<String> = journal().lines().map(|line| format!("{line}\n")).collect();
    let path = format!("\"<root>/mino-home/sessions/{FIRST}.jsonl\"").replace(FIRST, "<id>");
    let sound = |count: u32| format!("The journal's {count} records are sound.");
    let open = "\nThe last turn has no end: a start would close it as interrupted.";
    let torn = |line: u32, bytes: usize| {
        format!("\nLine {line} is torn ({bytes} bytes): a start would copy the file and cut it.")
    };
    let half = &lines[2][..60];
    for (content, finding) in [
        (String::new(), Ok(sound(0))),
        (lines[..6].concat(), Ok(sound(6))),
        (lines[..7].concat(), Ok(sound(7) + open)),
        (lines[..2].concat(), Ok(sound(2) + open)),
        (lines[..3].concat(), Ok(sound(3) + open)),
        (lines[..4].concat(), Ok(sound(4) + open)),
        (
            lines[..2].concat() + half,
            Ok(sound(2) + &torn(3, 60) + open),
        ),
        (lines[..6].concat() + "\0\0\0\n", Ok(sound(6) + &torn(7, 4))),
        (
            lines[..6].concat().trim_end().to_owned(),
            Ok(sound(5) + &torn(6, lines[5].len() - 1) + open),
        ),
        (half.to_owned() + "\n" + &lines[3], Err("line 1: ")),
        (lines[..2].concat() + &lines[3], Err("line 3: ")),
        (lines[..6].concat() + &lines[5], Err("line 7: ")),
        (journal().replacen("\"v\":2", "\"v\":3", 1), Err("line 1: ")),
    ] {
        let home = settled();
        fs::write(home.journal_path_of(FIRST), &content).unwrap();
        let before = home.tree();
        let output = home.mino(&["check"]).run("");
        assert_eq!(home.tree(), before);
        let start = home.mino(&["--session", FIRST]).run("");
        match finding {
            Ok(finding) => {
                let expected = format!("Conversation {FIRST}\n{finding}\n");
                assert_eq!(output.expect_code(0).stdout, expected);
                start.expect_code(0);
                let after = home.mino(&["check"]).run("").expect_code(0).stdout;
                assert!(
                    !after.contains("torn") && !after.contains("no end"),
                    "{after}"
                );
                let copy = home
                    .mino_home
                    .join(format!("sessions/{FIRST}-recovery-1.jsonl"));
                let was_torn = finding.contains("torn");
                assert_eq!(read(copy), if was_torn { content.as_bytes() } else { b"" });
            }
            Err(place) => {
                let output = output.expect_code(1);
                let said = home.tidied(&output.stderr);
                let start_said = home.tidied(&start.expect_code(1).stderr);
                assert!(
                    said.starts_with(&format!("mino: cannot use {path}: {place}")),
                    "{said}"
                );
                assert_eq!(start_said, said, "a start says the same");
                assert_eq!(read(home.journal_path_of(FIRST)), content.as_bytes());
            }
        }
    }
}

#[test]
fn log_of_a_damaged_journal_shows_what_is_before_the_damage() {
    let home = settled();
    let damaged = journal().replacen("\"seq\":5", "\"seq\":6", 1);
    fs::write(home.journal_path_of(FIRST), damaged).unwrap();
    let output = home.mino(&["log"]).run("").expect_code(1);
    let good = LOG.split("2026-01-02T03:04:10.000Z").next().unwrap();
    assert_eq!(output.stdout, good);
    assert!(output.stderr.contains("line 5: "), "{output}");

    // An open turn is shown as far as it came, and what a start would make of it.
    let open: String = journal()
        .lines()
        .take(3)
        .map(|line| format!("{line}\n"))
        .collect();
    fs::write(home.journal_path_of(FIRST), open).unwrap();
    let good = LOG.split("2026-01-02T03:04:09.960Z").next().unwrap();
    let finding = "The journal's 3 records are sound.\n\
                   The last turn has no end: a start would close it as interrupted.\n";
    assert_eq!(printed(home.mino(&["log"])), format!("{good}{finding}"));
}

// --- ask and standard input ---------------------------------------------------------------------

/// The question that was sent.
fn asked(request: &Request) -> String {
    let input = request.input_values();
    let question = &input.last().expect("a question")["content"][0]["text"];
    question.as_str().expect("a text").to_owned()
}

#[test]
fn text_on_standard_input_follows_the_question_after_a_blank_line() {
    let cases = [
        (&["ask", "What", "is", "it?"][..], "", "What is it?"),
        (
            &["ask", "Explain:"],
            "line 1\nline 2\n",
            "Explain:\n\nline 1\nline 2\n",
        ),
        (&["ask", "--", "--new"], "no newline", "--new\n\nno newline"),
        (&["ask", "--", "-"], "x", "-\n\nx"),
        (
            &["ask", "-"],
            "  From standard input alone.\n",
            "  From standard input alone.\n",
        ),
    ];
    let endpoint = Endpoint::start(cases.iter().map(|_| text("a")));
    let home = Home::new(&endpoint);
    for (arguments, input, _) in cases {
        home.mino(arguments).run(input).expect_code(0);
    }
    let sent: Vec<String> = endpoint.requests().iter().map(asked).collect();
    assert_eq!(sent, cases.map(|(_, _, expected)| expected));
    let saved = home.records_of("user_message");
    let saved: Vec<&str> = saved.iter().map(|r| r["text"].as_str().unwrap()).collect();
    assert_eq!(saved, sent);
}

#[test]
fn standard_input_that_cannot_be_sent_is_refused_before_anything_is_saved() {
    const MIB: usize = 1024 * 1024;
    let home = settled();
    let before = home.tree();
    let cannot = "cannot read the question from standard input:";
    for (arguments, input, message) in [
        (
            ["ask", "Go"],
            b"caf\xe9".to_vec(),
            format!("{cannot} it is not UTF-8"),
        ),
        (
            ["ask", "-"],
            b"caf\xe9".to_vec(),
            format!("{cannot} it is not UTF-8"),
        ),
        (
            ["ask", "Go"],
            vec![b'x'; MIB + 1],
            format!("{cannot} it is longer than 1048576 bytes"),
        ),
        (
            ["ask", "-"],
            vec![b'x'; MIB + 1],
            format!("{cannot} it is longer than 1048576 bytes"),
        ),
        (
            ["ask", "-"],
            vec![],
            "the question on standard input is empty".into(),
        ),
        (
            ["ask", "-"],
            b" \n\n".to_vec(),
            "the question on standard input is empty".into(),
        ),
    ] {
        let output = home.mino(&arguments).run(input).expect_code(1);
        assert_eq!(
            (&*output.stdout, output.stderr),
            ("", format!("mino: {message}\n"))
        );
    }
    assert_eq!(home.tree(), before);

    // The last byte that is allowed.
    let endpoint = Endpoint::start([text("a")]);
    let home = Home::new(&endpoint);
    home.mino(&["ask", "-"]).run(vec![b'x'; MIB]).expect_code(0);
    assert_eq!(asked(&endpoint.wait_for_request(1)).len(), MIB);
}

/// A call in a script that inherited an open pipe would otherwise hang without a word.
#[test]
fn waiting_for_standard_input_is_said_after_a_second() {
    let endpoint = Endpoint::start([text("a"), text("b")]);
    let home = Home::new(&endpoint);
    let mut asking = home.mino(&["ask", "Go"]).start();
    let notice =
        "Waiting for text on standard input; end it with Ctrl+D, or use < /dev/null for none.\n";
    asking.wait_for_stderr(notice);
    asking.write(b"late");
    asking.close_stdin();
    let output = asking.wait().expect_code(0);
    assert_eq!((&*output.stdout, &*output.stderr), ("a\n", notice));
    assert_eq!(asked(&endpoint.wait_for_request(1)), "Go\n\nlate");

    // A person types it: the same notice, and Ctrl+D ends it.
    let mut tty = home.mino(&["ask", "-"]).on_tty(WIDE);
    tty.wait_for(notice.trim_end());
    tty.send_line("typed");
    tty.send("\x04");
    assert_eq!(tty.wait_exit(), 0);
    assert_eq!(asked(&endpoint.wait_for_request(2)), "typed\n");
}

#[test]
fn signal_ends_the_waiting_for_standard_input() {
    let home = settled();
    let before = home.tree();
    let mut asking = home.mino(&["ask", "Go"]).start();
    asking.wait_for_stderr("Waiting for text");
    asking.signal(Signal::TERM);
    asking.wait().expect_code(143);
    assert_eq!(home.tree(), before);
}

// --- the chat, piped and typed ------------------------------------------------------------------

#[test]
fn piped_lines_are_questions_one_by_one() {
    let endpoint = Endpoint::start([text("First."), text("Second."), text("Third.")]);
    let home = Home::new(&endpoint);
    let input = "One\n\n   \n/help\n/frob it\nTwo\r\n  Three  ";
    let output = home.mino::<&str>(&[]).run(input).expect_code(1);
    let url = endpoint.base_url();
    let expected = format!(
        "Mino 0.3.0 · conversation <id> · test-model at {url}\n\
         {BANNER}\n\
         You> One\n\
         Assistant> First.\n\
         You> \n\
         You>    \n\
         You> /help\n\
         \x20 /help                  this text\n\
         \x20 /new                   start a new conversation\n\
         \x20 /exit                  leave; so does Ctrl+D on an empty line\n\
         \x20 Ctrl+C                 leave at once; a turn in progress is cancelled\n\
         \x20 Alt+Enter              a line break in the question; a paste keeps its own\n\
         \x20 Up, Down               earlier questions\n\
         You> /frob it\n\
         You> Two\n\
         Assistant> Second.\n\
         You>   Three  \n\
         Assistant> Third.\n\
         You> \n\
         Goodbye.\n"
    );
    assert_eq!(home.tidied(&output.stdout), expected);
    assert_eq!(
        output.stderr,
        "mino: unknown command \"/frob it\"; /help lists the commands\nhint: a blank before it makes it a question\n"
    );
    let sent: Vec<String> = endpoint.requests().iter().map(asked).collect();
    assert_eq!(sent, ["One", "Two", "  Three  "]);
}

#[test]
fn exit_code_of_piped_questions_is_the_worst_of_them() {
    let denied = || vec![call("call_1", "touch ran"), text("I could not.")];
    let fine = || vec![text("Fine.")];
    let failed = || vec![failing()];
    for (turns, code) in [
        (vec![], 0),
        (vec![fine(), fine()], 0),
        (vec![denied(), fine()], 3),
        (vec![fine(), denied()], 3),
        (vec![denied(), failed(), fine()], 1),
        (vec![failed(), denied()], 1),
    ] {
        let questions = "Go\n".repeat(turns.len());
        let endpoint = Endpoint::start(turns.into_iter().flatten());
        let home = Home::new(&endpoint);
        home.mino::<&str>(&[]).run(questions).expect_code(code);
        endpoint.assert_all_used();
        assert!(home.work_files().is_empty());
    }
}

#[test]
fn piped_line_that_cannot_be_sent_is_an_error_and_the_next_one_counts() {
    const MIB: usize = 1024 * 1024;
    for (bad, why) in [
        (b"caf\xe9".to_vec(), "it is not valid UTF-8"),
        (vec![b'x'; MIB + 1], "1048576"),
    ] {
        let endpoint = Endpoint::start([text("a")]);
        let home = Home::new(&endpoint);
        let input = [&bad[..], b"\nGood\n"].concat();
        let output = home.mino::<&str>(&[]).run(input).expect_code(1);
        assert!(output.stderr.contains(why), "{output}");
        assert!(output.stdout.contains("\nYou> \nYou> Good\n"), "{output}");
        let sent: Vec<String> = endpoint.requests().iter().map(asked).collect();
        assert_eq!(sent, ["Good"]);
    }
}

#[test]
fn exit_ends_the_chat_and_new_begins_a_conversation() {
    let endpoint = Endpoint::start([text("First."), text("Second.")]);
    let home = Home::new(&endpoint);
    let input = "One\n/new\nTwo\n/exit\nThree\n";
    let output = home.mino::<&str>(&[]).run(input).expect_code(0);
    assert!(
        output.stdout.ends_with("You> /exit\nGoodbye.\n"),
        "{output}"
    );
    assert_eq!(output.stdout.matches("Mino 0.3.0").count(), 2, "{output}");
    assert_eq!(home.session_files().len(), 2);
    let sent: Vec<usize> = endpoint
        .requests()
        .iter()
        .map(|r| r.input().len())
        .collect();
    assert_eq!(sent, [1, 1], "the second knows nothing of the first");
    let banner = output.stdout.rsplit("conversation ").next().unwrap();
    assert!(banner.starts_with(&home.pointer()), "{output}");
}

/// A mistyped command must not travel to a server as a question.
#[test]
fn slash_commands_of_a_person() {
    let endpoint = Endpoint::start([]);
    for (leaving, before) in [("/exit\r", ""), ("  /exit  \r", ""), ("\x04", "")] {
        let home = Home::new(&endpoint);
        let mut tty = chat_on_tty(&home);
        reply_to(&tty, "You> ", "/exot");
        tty.wait_for("mino: unknown command \"/exot\"; /help lists the commands");
        reply_to(&tty, "You> ", "/");
        tty.wait_for("mino: unknown command \"/\"; /help lists the commands");
        reply_to(&tty, "You> ", "/help");
        tty.wait_for("/new                   start a new conversation");
        reply_to(&tty, "You> ", before);
        tty.wait_for("You> ");
        tty.send(leaving);
        tty.wait_for("Goodbye.");
        // The person has seen the errors, so they are not told again by the exit code.
        assert_eq!(tty.wait_exit(), 0);
        assert!(home.lines().is_empty());
    }
}

// --- the key ------------------------------------------------------------------------------------

/// Every file below `folder`, but for the one that holds the key by right.
fn files_with(folder: &Path, needle: &str, found: &mut Vec<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files_with(&path, needle, found);
        } else if find(&read(&path), needle.as_bytes()).is_some() {
            found.push(path.file_name().unwrap().to_string_lossy().into_owned());
        }
    }
}

/// In other programs the key was in the environment of every command, and `env` put it into the
/// conversation. Here a command looks for it in its own environment and in its parent's, with the
/// rights of root where the tests have them, and nothing may hold it but the request's header.
#[test]
fn key_is_nowhere_but_in_the_header() {
    const OTHER: &str = "sk-other-fedcba9876543210";
    let spy = "env; tr '\\0' '\\n' < /proc/$PPID/environ; tr '\\0' '\\n' < /proc/$PPID/cmdline; \
               echo; echo looked; tr '\\0' '\\n' < /proc/$$/environ > environment";
    let is_root = rustix::process::geteuid().is_root();
    for by_file in [true, false] {
        let endpoint = Endpoint::start([call("call_1", spy), text("Nothing.")]);
        let home = Home::new(&endpoint);
        let mut mino = home.mino(&["ask", "Go"]).env("OPENAI_API_KEY", OTHER);
        if !by_file {
            let config = json!({"base_url": endpoint.base_url(), "model": "m"});
            home.write_config(&config);
            mino = mino.env("MINO_API_KEY", KEY);
        }
        let mut tty = mino.on_tty(WIDE);
        tty.wait_for(QUESTION);
        for name in ["environ", "cmdline"] {
            let seen = read(format!("/proc/{}/{name}", tty.pid()));
            // The same account without the rights of root may not even look.
            assert_eq!(seen.is_empty(), name == "environ" && !is_root, "{name}");
            for key in [KEY, OTHER] {
                assert_eq!(find(&seen, key.as_bytes()), None, "in {name}");
            }
        }
        tty.send_line("y");
        tty.wait_for("looked");
        assert_eq!(tty.wait_exit(), 0);

        let bearer = format!("Bearer {KEY}");
        for request in endpoint.requests() {
            assert_eq!(request.header("authorization"), Some(&*bearer));
            let mut rest = request.headers.clone();
            rest.retain(|(name, _)| !name.eq_ignore_ascii_case("authorization"));
            assert!(!format!("{rest:?} {}", request.path).contains(KEY));
            assert_eq!(find(&request.body, KEY.as_bytes()), None);
        }
        let output = &endpoint.wait_for_request(2).results()[0].1["output"];
        let output = output.as_str().unwrap();
        let saw = if is_root {
            "MINO_HOME="
        } else {
            "Permission denied"
        };
        assert!(output.contains(saw), "it looked at the parent: {output}");
        for key in [KEY, OTHER] {
            assert!(!output.contains(key));
            assert_eq!(find(&tty.raw(), key.as_bytes()), None);
        }
        let mut found = Vec::new();
        files_with(home.root(), KEY, &mut found);
        let expected: &[&str] = if by_file { &["config.json"] } else { &[] };
        assert_eq!(found, expected);
        files_with(home.root(), OTHER, &mut found);
        assert_eq!(found, expected);
        assert!(!printed(home.mino(&["log"])).contains(KEY));
        // The command's own environment, before Bash adds to it, is exactly this.
        let own = String::from_utf8(read(home.in_work("environment"))).unwrap();
        let expected = format!(
            "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\nHOME={}\nLANG=C.UTF-8\n",
            home.home.display()
        );
        assert_eq!(own, expected);
    }
}

#[test]
fn key_that_a_server_repeats_is_not_shown() {
    let said = format!("Incorrect API key: {KEY} (Bearer {KEY})");
    let endpoint = Endpoint::start([
        http_error("401 Unauthorized", KEY, &said).header("x-request-id", KEY),
        http_error("400 Bad Request", "bad", &said),
        Answer::http("200 OK", "text/html", format!("<p>{said}</p>")),
        Answer::http("307 Temporary Redirect", "text/plain", "")
            .header("Location", &format!("http://127.0.0.1:1/{KEY}")),
        Reply::new().failed(KEY, &said),
        Reply::new().incomplete(KEY),
    ]);
    let home = Home::new(&endpoint);
    let questions = "Go\n".repeat(6);
    let output = home.mino::<&str>(&[]).run(questions).expect_code(1);
    endpoint.assert_all_used();
    assert_eq!(output.stderr.matches("mino: ").count(), 6, "{output}");
    assert!(!output.to_string().contains(KEY), "{output}");
    let mut found = Vec::new();
    files_with(home.root(), KEY, &mut found);
    assert_eq!(found, ["config.json"]);
}
