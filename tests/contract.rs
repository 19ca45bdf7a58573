//! The library as another program uses it: a tool of its own, a scripted person, and no change to
//! the loop. What is on disk is looked at from outside, at every point where something acts on it.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex, mpsc};
use std::thread;

use mino::agent::{Agent, Event, Operator, OutputClosed, TurnError};
use mino::model::Client;
use mino::model::wire::Wire;
use mino::session::home::Home;
use mino::session::{SaveError, Session};
use mino::step::{Call, Definition, Display, Ran, Repeat, Service, ToolResult, Verdict};
use mino::sys::signal::Stop;
use mino::tools::{Action, Outcome, Tool, Toolbox};
use serde_json::Value;

mod support;
use support::endpoint::{Endpoint, Reply, call as bash_call, hold, text};

/// What happened, in order, each with the kinds of record that were on disk at that moment.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<Entry>>>);

type Entry = (String, Vec<String>);

impl Log {
    fn add(&self, what: &str, journal: &PathBuf) {
        self.0
            .lock()
            .unwrap()
            .push((what.to_owned(), kinds(journal)));
    }

    fn entries(&self) -> Vec<Entry> {
        self.0.lock().unwrap().clone()
    }

    fn count(&self, what: &str) -> usize {
        self.entries()
            .iter()
            .filter(|(name, _)| name == what)
            .count()
    }
}

fn records(journal: &PathBuf) -> Vec<Value> {
    let text = std::fs::read_to_string(journal).unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn kinds(journal: &PathBuf) -> Vec<String> {
    records(journal)
        .iter()
        .map(|record| record["kind"].as_str().unwrap().to_owned())
        .collect()
}

/// A tool without a process: its result has no exit code.
struct Echo {
    log: Log,
    journal: PathBuf,
}

struct Say {
    text: String,
    log: Log,
    journal: PathBuf,
}

impl Tool for Echo {
    fn definition(&self) -> Definition {
        Definition {
            name: "echo",
            description: "Says it back.",
            parameters: r#"{"type":"object","properties":{"text":{"type":"string"}},"required":["text"],"additionalProperties":false}"#,
        }
    }

    fn prepare(&self, arguments: &str) -> Result<Box<dyn Action>, String> {
        let parsed: Value = serde_json::from_str(arguments).map_err(|error| error.to_string())?;
        let text = parsed["text"]
            .as_str()
            .ok_or("`text` is missing")?
            .to_owned();
        Ok(Box::new(Say {
            text,
            log: self.log.clone(),
            journal: self.journal.clone(),
        }))
    }
}

impl Action for Say {
    fn display(&self) -> Display {
        Display {
            tool: "echo".into(),
            command: self.text.clone(),
            shell: None,
            cwd: Some(OsString::from("/nowhere")),
            environment: Vec::new(),
            limits: "none".into(),
            seconds: None,
        }
    }

    fn execute(self: Box<Self>) -> Outcome {
        self.log.add("execute", &self.journal);
        let result = ToolResult::ran(Ran::Completed, format!("said {}", self.text), None, false);
        Outcome {
            result,
            notice: None,
        }
    }
}

struct Person {
    log: Log,
    journal: PathBuf,
    verdict: Verdict,
}

impl Operator for Person {
    fn show(&mut self, event: Event<'_>) -> Result<(), OutputClosed> {
        let what = match event {
            Event::Answered(_) => "answered",
            Event::Running(_) => "running",
            Event::Result(_) => "result",
            // How often a wait is said depends on how long it is.
            Event::Waiting | Event::Text(_) | Event::Notice(_) => return Ok(()),
        };
        self.log.add(what, &self.journal);
        Ok(())
    }

    fn approve(&mut self, display: &Display, _: Option<&Repeat>) -> Verdict {
        assert_eq!(
            (display.tool.as_str(), display.command.as_str()),
            ("echo", "hello")
        );
        self.log.add("approve", &self.journal);
        self.verdict
    }
}

struct Rig {
    _folder: tempfile::TempDir,
    session: Arc<Session>,
    journal: PathBuf,
    log: Log,
}

impl Rig {
    fn new() -> Rig {
        let folder = tempfile::tempdir().unwrap();
        let home = Home::at(folder.path().join("mino"));
        home.prepare().unwrap();
        let session = Session::create(&home, Box::new(Wire)).unwrap();
        let journal = home.journal_path(&session.id());
        Rig {
            _folder: folder,
            session: Arc::new(session),
            journal,
            log: Log::default(),
        }
    }

    fn agent(&self, endpoint: &Endpoint) -> Agent {
        let stop = Stop::new().unwrap();
        let tools = Toolbox::new(vec![Box::new(Echo {
            log: self.log.clone(),
            journal: self.journal.clone(),
        })]);
        let service = Service {
            base_url: endpoint.base_url(),
            model: "test-model".into(),
            key: None,
            key_source: String::new(),
            idle_seconds: 30,
            proxy: None,
            roots: None,
        };
        let client = Client::new(service, "Be brief.", &tools.definitions(), stop.clone()).unwrap();
        Agent::new(Arc::clone(&self.session), tools, client, stop)
    }

    fn person(&self, verdict: Verdict) -> Person {
        Person {
            log: self.log.clone(),
            journal: self.journal.clone(),
            verdict,
        }
    }
}

fn echo_call() -> support::endpoint::Answer {
    Reply::new()
        .call("call_1", "echo", r#"{"text":"hello"}"#)
        .completed()
}

#[test]
fn every_step_is_on_disk_before_the_next_acts_on_it() {
    let rig = Rig::new();
    let (log, journal) = (rig.log.clone(), rig.journal.clone());
    let mut answers = vec![text("Done."), echo_call()];
    let endpoint = Endpoint::scripted(move |_| {
        log.add("request", &journal);
        answers.pop()
    });
    rig.agent(&endpoint)
        .submit("Say hello", &mut rig.person(Verdict::Approved))
        .unwrap();

    let question = vec!["user_message"];
    let response = vec!["user_message", "model_response"];
    let started = [response.clone(), vec!["tool_start"]].concat();
    let settled = [started.clone(), vec!["tool_result"]].concat();
    let ended = [settled.clone(), vec!["model_response", "turn_end"]].concat();
    let expected: Vec<(&str, Vec<&str>)> = vec![
        ("request", question),
        ("answered", response.clone()),
        ("approve", response.clone()),
        ("running", response),
        ("execute", started),
        ("result", settled.clone()),
        ("request", settled),
        ("answered", ended),
    ];
    let entries = rig.log.entries();
    let seen: Vec<(&str, Vec<&str>)> = entries
        .iter()
        .map(|(what, kinds)| (what.as_str(), kinds.iter().map(String::as_str).collect()))
        .collect();
    assert_eq!(seen, expected);
}

#[test]
fn the_result_has_no_exit_code_where_there_was_no_process() {
    let rig = Rig::new();
    let endpoint = Endpoint::start([echo_call(), text("Done.")]);
    rig.agent(&endpoint)
        .submit("Say hello", &mut rig.person(Verdict::Approved))
        .unwrap();
    let result = &records(&rig.journal)[3]["result"];
    assert_eq!(
        result.to_string(),
        r#"{"output":"said hello","status":"completed"}"#
    );
    let (id, sent) = &endpoint.requests()[1].results()[0];
    assert_eq!((id.as_str(), sent), ("call_1", result));
    let tools = endpoint.requests()[0].json()["tools"].clone();
    assert_eq!(tools[0]["name"], "echo");
    assert_eq!(tools.as_array().unwrap().len(), 1);
}

#[test]
fn the_injected_tools_are_the_only_ones() {
    let rig = Rig::new();
    let endpoint = Endpoint::start([bash_call("call_1", "touch ran"), text("There is no bash.")]);
    rig.agent(&endpoint)
        .submit("Go", &mut rig.person(Verdict::Approved))
        .unwrap();
    assert_eq!(rig.log.count("approve"), 0);
    assert_eq!(records(&rig.journal)[2]["result"]["status"], "unknown_tool");
}

#[test]
fn a_denied_call_has_no_start() {
    let rig = Rig::new();
    let endpoint = Endpoint::start([echo_call(), text("It was denied.")]);
    rig.agent(&endpoint)
        .submit("Go", &mut rig.person(Verdict::Denied))
        .unwrap();
    assert_eq!(rig.log.count("execute"), 0);
    assert_eq!(
        kinds(&rig.journal),
        [
            "user_message",
            "model_response",
            "tool_result",
            "model_response",
            "turn_end"
        ]
    );
}

/// Two agents of one session, on two threads: the guard is the session's, not the agent's.
#[test]
fn a_second_question_while_one_is_in_progress_is_refused_unwritten() {
    let rig = Rig::new();
    let (piece, release) = hold();
    let endpoint = Endpoint::start([Reply::new()
        .delta("One")
        .piece(piece)
        .message("One")
        .completed()]);
    let (first, second) = (rig.agent(&endpoint), rig.agent(&endpoint));
    let (tell, told) = mpsc::channel();
    thread::scope(|scope| {
        let mut person = rig.person(Verdict::Denied);
        scope.spawn(move || {
            tell.send(first.submit("First", &mut person).is_ok())
                .unwrap()
        });
        release.wait_reached();
        let before = std::fs::read(&rig.journal).unwrap();
        let busy = second
            .submit("Second", &mut rig.person(Verdict::Denied))
            .unwrap_err();
        assert!(matches!(busy, TurnError::Busy), "{busy}");
        assert_eq!(std::fs::read(&rig.journal).unwrap(), before);
        assert!(matches!(rig.session.begin().err(), Some(SaveError::Busy)));
        release.release();
        assert!(told.recv().unwrap());
    });
    assert_eq!(endpoint.requests().len(), 1);
    assert_eq!(rig.session.questions(), ["First"]);
}

#[test]
fn a_start_is_not_proved_without_question_and_call() {
    let rig = Rig::new();
    let mut turn = rig.session.begin().unwrap();
    let call = Call {
        call_id: "call_1".into(),
        name: "echo".into(),
        arguments: "{}".into(),
        altered: false,
    };
    assert!(
        matches!(turn.start(&call, "/"), Err(SaveError::Order { .. })),
        "there is no question yet"
    );
    turn.question("Go").unwrap();
    assert!(
        matches!(turn.start(&call, "/"), Err(SaveError::Order { .. })),
        "nobody asked for the call"
    );
    assert_eq!(kinds(&rig.journal), ["user_message"]);
}

/// One tool turn in a process of its own, whose nth sync the kernel refuses. Run by the test below.
#[test]
fn child_one_turn() {
    let Ok(report) = std::env::var("MINO_CONTRACT_REPORT") else {
        return;
    };
    let rig = Rig::new();
    let endpoint = Endpoint::start([echo_call(), text("Done.")]);
    std::fs::write(&report, "created").unwrap();
    let error = rig
        .agent(&endpoint)
        .submit("Say hello", &mut rig.person(Verdict::Approved))
        .err();
    let fatal = error.as_ref().is_some_and(TurnError::is_fatal);
    let again = matches!(rig.session.begin().err(), Some(SaveError::Failed { .. }));
    let line = format!(
        "fatal={fatal} again={again} records={} questions={} requests={} approvals={} executions={} results={} said={}",
        kinds(&rig.journal).len(),
        rig.session.questions().len(),
        endpoint.requests().len(),
        rig.log.count("approve"),
        rig.log.count("execute"),
        rig.log.count("result"),
        error.map(|error| error.to_string()).unwrap_or_default(),
    );
    std::fs::write(&report, line).unwrap();
}

/// What a failed sync means for what comes after it: nothing does. The record that was written but
/// not synced can be read back, which proves nothing, so it doesn't count.
#[test]
fn a_failed_sync_stops_everything_that_would_have_followed() {
    if Command::new("strace").arg("-V").output().is_err() {
        eprintln!("SKIPPED: strace is missing, so no sync can be made to fail");
        return;
    }
    let mut outcomes = Vec::new();
    for failing in 1..20 {
        let folder = tempfile::tempdir().unwrap();
        let report = folder.path().join("report");
        let traced = Command::new("strace")
            .args(["-f", "-qq", "-o", "/dev/null", "-e", "trace=fsync", "-e"])
            .arg(format!("inject=fsync:error=EIO:when={failing}"))
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", "child_one_turn", "--test-threads", "1"])
            .env("MINO_CONTRACT_REPORT", &report)
            .output()
            .unwrap();
        match std::fs::read_to_string(&report) {
            Ok(line) if line.starts_with("fatal=true") => outcomes.push(line),
            Ok(line) if line.starts_with("fatal=false") => {
                assert!(
                    line.contains("again=false records=6 questions=1 requests=2"),
                    "{line}"
                );
                break;
            }
            // The sync of a file or folder that is made before the turn.
            _ => assert!(!traced.status.success(), "no report and no failure"),
        }
    }
    let expected = [
        "records=1 questions=0 requests=0 approvals=0 executions=0 results=0 said=cannot save the question",
        "records=2 questions=1 requests=1 approvals=0 executions=0 results=0 said=cannot save the response",
        "records=3 questions=1 requests=1 approvals=1 executions=0 results=0 said=cannot save the start of the command",
        "records=4 questions=1 requests=1 approvals=1 executions=1 results=0 said=cannot save the result",
        "records=5 questions=1 requests=2 approvals=1 executions=1 results=1 said=cannot save the response",
        "records=6 questions=1 requests=2 approvals=1 executions=1 results=1 said=cannot save the end of the turn",
    ];
    assert_eq!(outcomes.len(), expected.len(), "{outcomes:#?}");
    for (outcome, expected) in outcomes.iter().zip(expected) {
        assert!(
            outcome.contains(&format!("fatal=true again=true {expected}")),
            "{outcome}"
        );
    }
}
