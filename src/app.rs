//! The one place that builds the parts and hands them to each other.
//!
//! Owns: the order of a start, and the commands that only read (`log`, `check`, `sessions`).
//! Promises: nothing on disk is changed before every setting has proved usable; the key is gone
//! from the environment block before anything else runs; no session is opened without its lock.
//! Leans on every other module. Gives up: settings are read once per start.

use std::ffi::OsString;
use std::sync::Arc;

use crate::agent::Agent;
use crate::gateway::args::{self, Choice, Command, Options, Question};
use crate::gateway::chat::Terminal;
use crate::gateway::config::{self, Config, Environment, Resolved};
use crate::gateway::line::{Mode, Reader};
use crate::gateway::screen::{self, Screen, Stream};
use crate::gateway::transcript::Transcript;
use crate::gateway::{Complaint, Exit};
use crate::model::wire::Wire;
use crate::model::{Client, ModelError};
use crate::session::home::{Home, HomeError, SessionId};
use crate::session::{self, Session, SessionError, StartNotice, record};
use crate::step::Service;
use crate::sys::signal::Stop;
use crate::sys::{process, terminal};
use crate::text;
use crate::tools::Toolbox;
use crate::tools::bash::{self, Bash};

/// Variables whose value no command may read from Mino's own `/proc` files.
const SECRET_VARIABLES: [&str; 2] = ["MINO_API_KEY", "OPENAI_API_KEY"];

/// One run of the program.
pub fn run(words: impl IntoIterator<Item = OsString>) -> Exit {
    let command = match args::parse(words) {
        Ok(command) => command,
        Err(error) => {
            complain(&Complaint::new(error.0, Some("`mino help` lists commands and options")));
            return Exit::Usage;
        }
    };
    let done = match command {
        Command::Help => return print(&args::help()),
        Command::Version => return print(concat!("mino ", env!("CARGO_PKG_VERSION"), "\n")),
        Command::Log(id) => log(id),
        Command::Check(id) => check(id),
        Command::Sessions => sessions(),
        Command::Chat(options) => converse(options, None),
        Command::Ask(options, question) => converse(options, Some(question)),
    };
    done.unwrap_or_else(|complaint| {
        complain(&complaint);
        Exit::Failure
    })
}

/// A complaint where no screen exists yet. A closed standard error is nobody's loss.
fn complain(complaint: &Complaint) {
    match Stop::new() {
        Ok(stop) => {
            let mut screen = Screen::new(true, false, false, &stop);
            let _ = screen.error(&complaint.message, complaint.hint.as_deref());
        }
        // No descriptor is left for a handle, and that may be what is to be said.
        Err(_) => {
            let line = format!("mino: {}\n", text::clean(&complaint.message));
            terminal::write_now(Stream::Err.fd(), line.as_bytes());
        }
    }
}

/// Text to standard output, and what became of it.
fn print(text: &str) -> Exit {
    match write_out(text) {
        Ok(()) => Exit::Done,
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Exit::ClosedOutput,
        Err(error) => {
            complain(&Complaint::new(format!("cannot write the output: {error}"), None));
            Exit::Failure
        }
    }
}

fn write_out(text: &str) -> std::io::Result<()> {
    // Nothing asks this short run to stop, so the handle only completes the call.
    terminal::write_all(Stream::Out.fd(), text.as_bytes(), &Stop::new()?)
}

/// The folder and the conversation that a reading command is about.
fn place(id: Option<String>) -> Result<(Home, SessionId), Complaint> {
    let home = Home::at(Environment::read().mino_home()?);
    let id = match id {
        Some(prefix) => home.find(&prefix)?,
        None => home
            .active()?
            .ok_or_else(|| Complaint::new("there is no conversation yet", Some("`mino` starts one")))?,
    };
    Ok((home, id))
}

/// `mino log`: every record that can be read, then what is wrong with the rest, if anything.
fn log(id: Option<String>) -> Result<Exit, Complaint> {
    let (home, id) = place(id)?;
    let (mut transcript, mut exit) = (Transcript::default(), print(&format!("Conversation {id}\n\n")));
    let finding = session::read(&home, &id, &Wire, &mut |entry| {
        if exit == Exit::Done {
            exit = print(&transcript.add(&entry));
        }
    })?;
    match (exit, finding.torn.is_some() || finding.open.is_some()) {
        (Exit::Done, true) => Ok(print(&format!("{finding}\n"))),
        (exit, _) => Ok(exit),
    }
}

/// `mino check`: what a start would find, and do.
fn check(id: Option<String>) -> Result<Exit, Complaint> {
    let (home, id) = place(id)?;
    let finding = session::read(&home, &id, &Wire, &mut |_| {})?;
    Ok(print(&format!("Conversation {id}\n{finding}\n")))
}

/// `mino sessions`: one line each, the last changed first.
fn sessions() -> Result<Exit, Complaint> {
    let home = Home::at(Environment::read().mino_home()?);
    let current = home.active().ok().flatten();
    let rows: String = home
        .sessions()?
        .iter()
        .map(|info| {
            let mark = if current == Some(info.id) { '*' } else { ' ' };
            format!("{mark} {}  {}  {} turns\n", info.id, record::time(info.changed), info.turns)
        })
        .collect();
    Ok(print(&rows))
}

/// The chat, or one question.
fn converse(options: Options, question: Option<Question>) -> Result<Exit, Complaint> {
    let env = Environment::read();
    SECRET_VARIABLES.iter().for_each(|name| process::overwrite_env_value(name));
    let stop = start_process()?;
    let home = Home::at(env.mino_home()?);
    let mut person = person(&env, question.is_some(), &stop);
    let planned = plan(&home, &env, options, question, &mut person);
    if let Some(exit) = person.forced_exit() {
        return Ok(exit);
    }
    let plan = planned?;
    let (model, server) = (plan.service.model.clone(), plan.service.base_url.clone());
    let question = plan.question.clone();
    let agent = set_out(plan, &home, &env, &mut person, stop)?;
    match question {
        Some(question) => Ok(person.ask_once(&agent, &question)),
        None => {
            let banner = |agent: &Agent| screen::banner(&agent.conversation(), &model, &server);
            Ok(person.chat(agent, &banner, &mut |agent| {
                agent.switch_to(open(&home, Chosen::New)?.0);
                Ok(())
            }))
        }
    }
}

/// What a conversation needs, decided before anything on disk is changed.
struct Plan {
    service: Service,
    /// Answers to the questions of the setup, to be kept.
    to_save: Option<Config>,
    /// The PATH for commands.
    path: Option<OsString>,
    instructions: String,
    soul_is_missing: bool,
    chosen: Chosen,
    question: Option<String>,
}

fn plan(
    home: &Home,
    env: &Environment,
    options: Options,
    question: Option<Question>,
    person: &mut Terminal,
) -> Result<Plan, Complaint> {
    let config = Config::read(&home.config_path())?;
    let path = config.path.clone().map(OsString::from);
    let (instructions, soul_is_missing) = config::read_soul(&home.soul_path())?;
    let chosen = choose(home, &options.choice)?;
    let is_typing = person.is_typing();
    let asker = is_typing.then_some(&mut *person as &mut dyn config::Asker);
    let resolved = config::resolve(config, options.model, options.base_url, env, asker)?;
    let Resolved::Ready { service, save } = resolved else {
        let why = "the questions were not all answered; nothing was saved";
        return Err(Complaint::new(why, None));
    };
    Ok(Plan {
        service: *service,
        to_save: save,
        path,
        instructions,
        soul_is_missing,
        chosen,
        question: question.map(|question| whole_question(question, person)).transpose()?,
    })
}

/// Builds the parts, then makes the folder ready and opens the conversation.
fn set_out(
    plan: Plan,
    home: &Home,
    env: &Environment,
    person: &mut Terminal,
    stop: Stop,
) -> Result<Agent, Complaint> {
    let is_unencrypted = config::is_unencrypted(&plan.service);
    let bash = Bash::new(bash::Settings {
        cwd: std::env::current_dir().map_err(|error| error.to_string()),
        path: plan.path,
        home: env.command_home(),
        stop: stop.clone(),
        shell: bash::SHELL.into(),
        limits: bash::Bounds::default(),
    });
    let tools = Toolbox::new(vec![Box::new(bash)]);
    let (definitions, instructions) = (tools.definitions(), &plan.instructions);
    let client = Client::new(plan.service, instructions, &definitions, stop.clone())?;

    let mut notices = Vec::new();
    for path in home.prepare()? {
        let path = text::quote_os(path.as_os_str());
        notices.push(format!("Notice: others may use {path}, and it can't be made private."));
    }
    if let Some(config) = plan.to_save {
        config.save()?;
    }
    if plan.soul_is_missing {
        config::create_soul(&home.soul_path())?;
    }
    let (session, found) = open(home, plan.chosen)?;
    if is_unencrypted {
        notices.push("Notice: the conversation travels unencrypted over plain HTTP.".into());
    }
    notices.extend(found.iter().map(StartNotice::to_string));
    for notice in notices {
        // A screen that fails here fails again at the banner or the answer, where it counts.
        let _ = person.screen.notice(&notice);
    }
    stop.on_tick(process::reap_strays);
    Ok(Agent::new(session, tools, client, stop))
}

/// What concerns the process as a whole, before a second thread exists.
fn start_process() -> Result<Stop, Complaint> {
    terminal::restore_on_panic();
    process::configure_allocator();
    let prepared = process::prepare_process().and_then(|()| Stop::install());
    prepared.map_err(|error| Complaint::new(format!("cannot set up the process: {error}"), None))
}

fn person(env: &Environment, ask: bool, stop: &Stop) -> Terminal {
    let screen = Screen::new(ask, env.has_escapes(), env.wants_colour(), stop);
    let (mode, mut draw) = Mode::detect(env.get("TERM"));
    if mode == Mode::Piped {
        draw = Stream::Out;
    }
    let interactive = mode != Mode::Piped && screen.tty().is_some();
    let reader = Reader::new(stop.clone(), mode, draw);
    Terminal::new(screen, reader, mode, interactive, stop.clone())
}

/// The question with what standard input adds to it.
fn whole_question(question: Question, person: &mut Terminal) -> Result<String, Complaint> {
    let blank = || Complaint::new("the question on standard input is empty", None);
    match question {
        Question::StandardInput => Ok(person.read_input()?).and_then(|text| match text.trim() {
            "" => Err(blank()),
            _ => Ok(text),
        }),
        Question::Words(words) if person.is_typing() => Ok(words),
        Question::Words(words) => Ok(match person.read_input()? {
            text if text.is_empty() => words,
            text => format!("{words}\n\n{text}"),
        }),
    }
}

/// Which conversation a run is about.
enum Chosen {
    New,
    Existing(SessionId),
}

/// Decides without changing anything on disk, and refuses a file that is none before anything else
/// is changed.
fn choose(home: &Home, choice: &Choice) -> Result<Chosen, Complaint> {
    let id = match choice {
        Choice::New => None,
        Choice::Named(prefix) => Some(home.find(prefix)?),
        Choice::Current => home.active()?,
    };
    let Some(id) = id else {
        return Ok(Chosen::New);
    };
    home.check_file(&id)?;
    Ok(Chosen::Existing(id))
}

/// Opens the conversation, under its lock, and makes it the current one.
fn open(home: &Home, chosen: Chosen) -> Result<(Arc<Session>, Vec<StartNotice>), Complaint> {
    let (session, notices) = match chosen {
        Chosen::New => (Session::create(home, Box::new(Wire))?, Vec::new()),
        Chosen::Existing(id) => Session::open(home, &id, Box::new(Wire))?,
    };
    if !matches!(home.active(), Ok(Some(id)) if id == session.id()) {
        home.set_active(&session.id())?;
    }
    Ok((Arc::new(session), notices))
}

/// Each layer's errors, as a person reads them.
macro_rules! complaints {
    ($($error:ty),+) => {$(
        impl From<$error> for Complaint {
            fn from(error: $error) -> Complaint {
                Complaint::new(&error, error.hint())
            }
        }
    )+};
}

complaints!(config::ConfigError, ModelError, SessionError, HomeError);
