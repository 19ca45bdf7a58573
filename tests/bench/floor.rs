//! The least that has to be done: what `make bench` sets beside Mino.
//!
//! `floor read FILE` reads a file and prints the prompt. `floor turn ADDRESS FOLDER` prints the
//! prompt, and for each line on standard input does what the files in FOLDER say, in the order of
//! their names, then prints the prompt again:
//! - `*.record`: appends the bytes to a file and syncs it
//! - `*.request`: opens a connection, sends the bytes and reads the answer to its end
//! - `*.command`: has Bash run the text, and reads what it prints
//! - `*.question`: prints the text and takes a line as its answer
//! - `*.wait`: does nothing for so many milliseconds
//!
//! Nothing is parsed, checked or shown. Only std, so that nobody's library is measured.

use std::fs::{self, File};
use std::io::{self, BufRead, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

const BLOCK_BYTES: usize = 64 * 1024;
const PROMPT: &str = "You> ";

fn main() -> io::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["read", file] => {
            read_all(&mut File::open(file)?)?;
            print(PROMPT)?;
            take_line()?;
            Ok(())
        }
        ["turn", address, folder] => turns(address, Path::new(folder)),
        _ => panic!("floor read FILE | floor turn ADDRESS FOLDER"),
    }
}

fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// Whether there was one.
fn take_line() -> io::Result<bool> {
    Ok(io::stdin().lock().read_line(&mut String::new())? > 0)
}

fn read_all(source: &mut impl Read) -> io::Result<()> {
    let mut block = vec![0; BLOCK_BYTES];
    while source.read(&mut block)? > 0 {}
    Ok(())
}

enum Deed {
    Save(Vec<u8>),
    Ask(Vec<u8>),
    Run(String),
    Question(String),
    Wait(Duration),
}

fn deeds(folder: &Path) -> io::Result<Vec<Deed>> {
    let entries = fs::read_dir(folder)?;
    let mut paths = entries
        .map(|entry| Ok(entry?.path()))
        .collect::<io::Result<Vec<_>>>()?;
    paths.sort();
    let mut deeds = Vec::new();
    for path in paths {
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("record") => deeds.push(Deed::Save(fs::read(path)?)),
            Some("request") => deeds.push(Deed::Ask(fs::read(path)?)),
            Some("command") => deeds.push(Deed::Run(fs::read_to_string(path)?)),
            Some("question") => deeds.push(Deed::Question(fs::read_to_string(path)?)),
            Some("wait") => {
                let millis = fs::read_to_string(path)?.parse();
                deeds.push(Deed::Wait(Duration::from_millis(millis.expect("a number"))));
            }
            _ => {}
        }
    }
    Ok(deeds)
}

fn turns(address: &str, folder: &Path) -> io::Result<()> {
    let deeds = deeds(folder)?;
    let mut journal = File::options()
        .create(true)
        .append(true)
        .open(folder.join("journal"))?;
    print(PROMPT)?;
    while take_line()? {
        for deed in &deeds {
            match deed {
                Deed::Save(record) => {
                    journal.write_all(record)?;
                    journal.sync_all()?;
                }
                Deed::Ask(request) => exchange(address, request)?,
                Deed::Run(command) => run(command)?,
                Deed::Question(text) => {
                    print(text)?;
                    take_line()?;
                }
                Deed::Wait(time) => thread::sleep(*time),
            }
        }
        print(PROMPT)?;
    }
    Ok(())
}

/// Sends a request and reads to the end of a chunked body, looking at its last bytes only.
fn exchange(address: &str, request: &[u8]) -> io::Result<()> {
    let mut connection = TcpStream::connect(address)?;
    connection.write_all(request)?;
    let mut block = vec![0; BLOCK_BYTES];
    let mut last = Vec::new();
    loop {
        let count = connection.read(&mut block)?;
        last.extend_from_slice(&block[count.saturating_sub(5)..count]);
        last.drain(..last.len().saturating_sub(5));
        if count == 0 || last == b"0\r\n\r\n" {
            return Ok(());
        }
    }
}

fn run(command: &str) -> io::Result<()> {
    let output = Command::new("/bin/bash")
        .args(["--noprofile", "--norc", "-c", "--", command])
        .stdin(Stdio::null())
        .output()?;
    assert!(output.status.success(), "{output:?}");
    Ok(())
}
