//! `make demo`: the real `mino` with a scripted model, for a person or for a build server.
//!
//! On a terminal a person asks and approves. Without one, `mino` runs in a pseudo-terminal of its
//! own, a question and an approval are typed visibly, and the exit code is 0 only if the answer held
//! what the command really printed. Promises: no key and no network beyond this machine; the home and
//! the working directory are temporary and gone at the end, also after Ctrl+C. Gives up: `kill -9`
//! leaves them in the folder for temporary files.

#[path = "../support/mod.rs"]
mod support;

use std::io::{IsTerminal, Write};
use std::process::{Command, ExitCode};
use std::sync::{Arc, Mutex};

use mino::sys::signal::{Signal, Stop};
use rustix::process::{Pid, kill_process};
use serde_json::Value;
use support::endpoint::{Answer, Endpoint, Reply, Request, text};
use support::home::{Home, Mino};
use support::tty::{QUESTION, Size, Tty};

/// The one command that the scripted model asks for.
const COMMAND: &str = "uname -sr";

fn main() -> ExitCode {
    // Ctrl+C reaches everyone on the terminal: `mino` closes its turn, and this program cleans up.
    let stop = Stop::install().expect("watch for signals");
    let (endpoint, home) = prepare();
    let is_terminal = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
    say(&format!(
        "A demonstration of Mino. Its model is SCRIPTED: a few lines of tests/demo/demo.rs that\n\
         answer at {} on this machine. No key is needed and nothing leaves this machine.\n\
         The home and the working directory are temporary. Whatever the question is, the script\n\
         asks for the command `{COMMAND}` and quotes what it printed.\n\n",
        endpoint.address()
    ));
    let code = if is_terminal {
        say("Type any question. Approve the command with y, or deny it. /exit leaves.\n\n");
        talk(&home, &stop)
    } else {
        say(
            "There is no terminal here: the question and the approval are typed by a script too.\n\n",
        );
        drive(&endpoint, &home, &stop)
    };
    let folder = home.work.clone();
    drop(home);
    assert!(!folder.exists(), "{} was left behind", folder.display());
    say("\nThe demonstration has ended and its files are gone.\n");
    code
}

/// The scripted model, and a home that names it.
fn prepare() -> (Endpoint, Home) {
    let mut count = 0;
    let endpoint = Endpoint::scripted(move |request| {
        count += 1;
        Some(answer(request, count))
    });
    let home = Home::new(&endpoint);
    home.configure("model", "scripted-demo-model");
    home.configure("api_key", "the-demo-needs-no-key");
    (endpoint, home)
}

/// What the script says: to a question the request for the command, to its result the quotation.
fn answer(request: &Request, count: usize) -> Answer {
    if request.input_values().last().map(|item| &item["type"])
        != Some(&"function_call_output".into())
    {
        return Reply::new()
            .message_in_phase("I will look at the system.", Some("commentary"))
            .bash(&format!("call_{count}"), COMMAND)
            .completed();
    }
    let results = request.results();
    let result = results.last().map_or(&Value::Null, |(_, result)| result);
    match (result["status"].as_str(), result["output"].as_str()) {
        (Some("completed"), Some(output)) => text(&format!(
            "`{COMMAND}` printed \"{}\", so that is what this machine runs.",
            output.trim()
        )),
        (Some("denied"), _) => text("I could not check: the command was denied."),
        (status, _) => text(&format!(
            "I could not check: the command ended as {}.",
            status.unwrap_or("nothing that I know")
        )),
    }
}

/// `mino` as a person sees it: their terminal, their TERM.
fn chat(home: &Home) -> Mino {
    let mut mino = home.mino::<&str>(&[]);
    for name in ["TERM", "LANG", "LC_ALL", "NO_COLOR"] {
        mino = match std::env::var_os(name) {
            Some(value) => mino.env(name, value),
            None => mino.without_env(name),
        };
    }
    mino
}

/// A person talks to it.
fn talk(home: &Home, stop: &Stop) -> ExitCode {
    let mut child = chat(home).command().spawn().expect("start mino");
    let running = pass_signals_on(stop, Some(Pid::from_child(&child)));
    let status = child.wait().expect("wait for mino");
    *running.lock().unwrap() = None;
    ExitCode::from(
        status
            .code()
            .and_then(|code| code.try_into().ok())
            .unwrap_or(1),
    )
}

/// Nobody is there: types for them and checks that the loop closes.
fn drive(endpoint: &Endpoint, home: &Home, stop: &Stop) -> ExitCode {
    let uname = Command::new("uname")
        .arg("-sr")
        .output()
        .expect("run uname");
    let truth = String::from_utf8_lossy(&uname.stdout).trim().to_owned();
    assert!(!truth.is_empty(), "uname says nothing");

    // As a dumb terminal, so that the copy below is text on whatever it lands.
    let mino = home.mino::<&str>(&[]).env("TERM", "dumb");
    let mut tty = mino.on_tty(Size { rows: 24, cols: 80 });
    let running = pass_signals_on(stop, Pid::from_raw(tty.pid().cast_signed()));
    let mut copied = 0;
    let mut wait = |tty: &Tty, text: &str| {
        tty.wait_for(text);
        say(&tty.plain_after(copied).replace('\r', ""));
        copied = tty.end();
    };
    wait(&tty, "You> ");
    tty.send_line("Which system is this?");
    wait(&tty, QUESTION);
    tty.send_line("y");
    wait(&tty, "[Tool result: completed; exit code 0]");
    wait(&tty, "Assistant> ");
    wait(&tty, &format!("\"{truth}\""));
    wait(&tty, "You> ");
    tty.send_line("/exit");
    wait(&tty, "Goodbye.");
    let code = tty.wait_exit();
    *running.lock().unwrap() = None;

    let told = endpoint.wait_for_request(2).results();
    let output = told.first().map(|(_, result)| &result["output"]);
    assert_eq!(
        output,
        Some(&Value::from(format!("{truth}\n"))),
        "what the model was told"
    );
    assert_eq!(code, 0, "mino's exit code");
    say("\nThe loop closed: the answer holds what the command really printed.\n");
    ExitCode::SUCCESS
}

/// Signals that reach this program alone are for `mino`. The pid is to be taken out at its end.
fn pass_signals_on(stop: &Stop, mino: Option<Pid>) -> Arc<Mutex<Option<Pid>>> {
    let running = Arc::new(Mutex::new(mino));
    let (seen, shared) = (stop.clone(), running.clone());
    stop.on_stop(move || {
        let signal = match seen.signal() {
            Some(Signal::Hangup) => rustix::process::Signal::HUP,
            Some(Signal::Interrupt) => rustix::process::Signal::INT,
            _ => rustix::process::Signal::TERM,
        };
        if let Some(pid) = *shared.lock().unwrap() {
            // It may be ending by itself, since a terminal tells everyone.
            let _ = kill_process(pid, signal);
        }
    });
    running
}

fn say(text: &str) {
    let mut out = std::io::stdout();
    // Without a reader the demonstration still has its exit code.
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}
