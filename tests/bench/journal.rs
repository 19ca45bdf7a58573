//! A journal as large as one may be, of turns like those of a real conversation.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use mino::limits::{JOURNAL_BYTES, JOURNAL_ROOM_BYTES};
use serde_json::{Value, json};

/// Fills the file, up to the room that is kept free of questions.
pub fn write_large(path: &Path) {
    let mut out = BufWriter::new(File::create(path).expect("a journal"));
    let (mut written, mut seq) = (0, 0);
    for turn in 0u64.. {
        let lines = turn_lines(turn, &mut seq);
        written += lines.len() as u64;
        if written > JOURNAL_BYTES - JOURNAL_ROOM_BYTES {
            break;
        }
        out.write_all(lines.as_bytes()).expect("write the journal");
    }
    out.flush().expect("write the journal");
}

/// A question, a command with two pages of output, and an answer of a page.
fn turn_lines(turn: u64, seq: &mut u64) -> String {
    let (call_id, command) = (format!("call_{turn:024x}"), "ls -l \"$HOME\" | head -40");
    let arguments = json!({ "command": command }).to_string();
    let row = "-rw-r--r-- 1 user user  4096 Jan 31 23:59 \"a file with a longer name\".txt\n";
    let answer =
        "There are **forty** files:\n\n```\n\"a file with a longer name\".txt\n```\n\n".repeat(20);
    let encrypted = "gAAAAABo5vJq".repeat(100);
    let reasoning = json!({
        "id": format!("rs_{turn:024x}"), "type": "reasoning",
        "encrypted_content": encrypted, "summary": [],
    });
    let call = json!({
        "id": format!("fc_{turn:024x}"), "type": "function_call", "status": "completed",
        "arguments": arguments, "call_id": call_id, "name": "bash",
    });
    let message = json!({
        "id": format!("msg_{turn:024x}"), "type": "message", "status": "completed",
        "role": "assistant",
        "content": [{"type": "output_text", "annotations": [], "logprobs": [], "text": answer}],
    });
    let result = json!({"status": "completed", "output": row.repeat(40), "exit_code": 0});
    let bodies = [
        (
            "user_message",
            json!({"text": "What is in my home folder, and what of it is old?"}),
        ),
        (
            "model_response",
            json!({"text": "", "output": [reasoning, call]}),
        ),
        (
            "tool_start",
            json!({
                "call_id": call_id, "name": "bash", "arguments": arguments, "cwd": "/home/user",
            }),
        ),
        ("tool_result", json!({"call_id": call_id, "result": result})),
        (
            "model_response",
            json!({"text": answer, "output": [message]}),
        ),
        ("turn_end", json!({"status": "completed"})),
    ];
    let line = |(kind, body): &(&str, Value)| {
        *seq += 1;
        let body = body.to_string();
        let fields = &body[1..];
        format!(
            "{{\"v\":2,\"seq\":{seq},\"time\":\"2026-01-31T23:59:59.999Z\",\
             \"turn_id\":\"{turn:032x}\",\"kind\":\"{kind}\",{fields}\n"
        )
    };
    bodies.iter().map(line).collect()
}
