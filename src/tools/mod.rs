//! Tools: what the model may ask for, checked before it is shown and run only as shown.
//!
//! Owns: the three steps of every tool (definition, prepare, execute) and the names that lead to
//! them. Promises: preparing executes nothing; what was prepared is what runs, since [`Prepared`]
//! can't be looked into or changed; nothing runs without [`Started`], which only the session hands
//! out, once the start is on disk. Leans on each tool to bound its own work. Gives up: tools know
//! nothing of turns, approval or the journal.

pub mod bash;

use crate::limits;
use crate::session::Started;
use crate::step::{Call, Definition, Display, NotRun, Ran, ToolResult};
use crate::text;

/// One thing the model may ask for by name.
pub trait Tool: Send + Sync {
    fn definition(&self) -> Definition;

    /// Checks `arguments`, the model's text, and decides all that execution will use. Executes
    /// nothing. The error says, for the model, why they were refused.
    fn prepare(&self, arguments: &str) -> Result<Box<dyn Action>, String>;
}

/// What a tool has prepared: shown first, then executed as it was shown, once.
pub trait Action {
    fn display(&self) -> Display;

    fn execute(self: Box<Self>) -> Outcome;
}

/// What came of an execution.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    pub result: ToolResult,
    /// A line for the person, not for the model.
    pub notice: Option<String>,
}

impl From<ToolResult> for Outcome {
    fn from(result: ToolResult) -> Outcome {
        let notice = None;
        Outcome { result, notice }
    }
}

/// A checked call on its way to approval and execution.
pub struct Prepared {
    call_id: String,
    name: String,
    display: Display,
    action: Box<dyn Action>,
}

impl Prepared {
    pub fn call_id(&self) -> &str {
        &self.call_id
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// What a person reads before deciding.
    pub fn display(&self) -> &Display {
        &self.display
    }
}

/// The tools at hand.
pub struct Toolbox {
    tools: Vec<Box<dyn Tool>>,
}

impl Toolbox {
    pub fn new(tools: Vec<Box<dyn Tool>>) -> Toolbox {
        Toolbox { tools }
    }

    /// What the model is told, in the order in which the tools were given.
    pub fn definitions(&self) -> Vec<Definition> {
        self.tools.iter().map(|tool| tool.definition()).collect()
    }

    /// The call ready for approval; or its result, where there is nothing to approve.
    pub fn prepare(&self, call: &Call) -> Result<Prepared, ToolResult> {
        let mut tools = self.tools.iter();
        let Some(tool) = tools.find(|tool| tool.definition().name == call.name) else {
            let name = text::one_line(&call.name, limits::TOOL_NAME_CHARS);
            let why = format!("there is no tool {}", text::quote(&name));
            return Err(ToolResult::not_run(NotRun::UnknownTool, why));
        };
        let refuse = |why: String| ToolResult::not_run(NotRun::InvalidArguments, why);
        if call.altered {
            return Err(refuse("the arguments hold a lone surrogate".into()));
        }
        let action = tool.prepare(&call.arguments).map_err(refuse)?;
        Ok(Prepared {
            call_id: call.call_id.clone(),
            name: call.name.clone(),
            display: action.display(),
            action,
        })
    }
}

/// Runs what was approved. `started` is the proof that this very call's start is on disk; with the
/// proof of another nothing runs, and the result of that start says so.
pub fn execute(prepared: Prepared, started: Started) -> Outcome {
    execute_as(prepared, started.call_id())
}

fn execute_as(prepared: Prepared, call_id: &str) -> Outcome {
    if prepared.call_id != call_id {
        let why = "not executed: the start on disk is that of another call";
        return ToolResult::ran(Ran::Failed, why, None, false).into();
    }
    prepared.action.execute()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers with its arguments; refuses none but `bad`.
    struct Echo;
    struct Said(String);

    impl Tool for Echo {
        fn definition(&self) -> Definition {
            Definition { name: "echo", description: "", parameters: "{}" }
        }
        fn prepare(&self, arguments: &str) -> Result<Box<dyn Action>, String> {
            match arguments {
                "bad" => Err("why".into()),
                good => Ok(Box::new(Said(good.into()))),
            }
        }
    }

    impl Action for Said {
        fn display(&self) -> Display {
            Display {
                tool: "echo".into(),
                command: self.0.clone(),
                shell: None,
                cwd: None,
                environment: vec![],
                limits: String::new(),
                seconds: None,
            }
        }
        fn execute(self: Box<Self>) -> Outcome {
            ToolResult::ran(Ran::Completed, self.0, None, false).into()
        }
    }

    fn prepare(name: &str, arguments: &str, altered: bool) -> Result<Prepared, ToolResult> {
        Toolbox::new(vec![Box::new(Echo)]).prepare(&Call {
            call_id: "c1".into(),
            name: name.into(),
            arguments: arguments.into(),
            altered,
        })
    }

    #[test]
    fn what_was_prepared_is_what_runs() {
        let prepared = prepare("echo", "hello", false).ok().unwrap();
        assert_eq!((prepared.call_id(), prepared.name()), ("c1", "echo"));
        assert_eq!(prepared.display().command, "hello");
        assert_eq!(execute_as(prepared, "c1").result.output(), "hello");
    }

    #[test]
    fn refused_calls_have_a_result_and_nothing_to_approve() {
        for (name, arguments, altered, result) in [
            ("ecno", "x", false, r#"{"status":"unknown_tool","output":"there is no tool \"ecno\""}"#),
            ("echo", "bad", false, r#"{"status":"invalid_arguments","output":"why"}"#),
            (
                "echo",
                "mended \u{fffd}",
                true,
                r#"{"status":"invalid_arguments","output":"the arguments hold a lone surrogate"}"#,
            ),
        ] {
            let refused = prepare(name, arguments, altered).err().unwrap();
            assert_eq!(serde_json::to_string(&refused).unwrap(), result);
        }
    }

    #[test]
    fn the_start_of_another_call_runs_nothing() {
        let prepared = prepare("echo", "hello", false).ok().unwrap();
        let result = execute_as(prepared, "c2").result;
        assert_eq!(result.status().name(), "failed");
        assert!(!result.output().contains("hello"));
    }
}
