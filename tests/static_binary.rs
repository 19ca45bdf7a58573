//! The one file that `make static` builds: what it needs (a kernel), and that it works where
//! nothing else is.
//!
//! Most of it happens in an empty root directory, into which only root may go: without root these
//! tests say so and do nothing. The binary is built here, into the folder of this build, and only
//! where a source is newer.

mod support;

#[path = "bench/static_check.rs"]
#[allow(dead_code)]
mod static_check;

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc::{self, Receiver};
use std::thread;

use serde_json::json;
use support::endpoint::{Endpoint, call, text};
use support::tty::{Size, Tty};
use support::{PATIENCE, find, read};
use tempfile::TempDir;

const SIZE: Size = Size { rows: 24, cols: 80 };
const MOST_BYTES: u64 = 3 * 1024 * 1024;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The folder of this build, such as `target`.
fn build_folder() -> &'static Path {
    Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap()
}

/// `make` with nothing of Cargo's own environment, which would have everything built again.
fn make(arguments: &[&str]) -> String {
    let mut command = Command::new("make");
    command.arg("-C").arg(root()).args(arguments).env_clear();
    for name in [
        "PATH",
        "HOME",
        "CARGO_HOME",
        "RUSTUP_HOME",
        "RUSTUP_TOOLCHAIN",
    ] {
        if let Some(value) = std::env::var_os(name) {
            command.env(name, value);
        }
    }
    let output = command.env("CARGO_TARGET_DIR", build_folder()).output();
    let output = output.expect("make");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{said}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    said
}

/// Builds the binary once in each run, which takes no time where it is there.
fn binary() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let said = make(&["--no-print-directory", "static"]);
        let line = said.lines().find_map(|line| line.strip_prefix("static: "));
        let line = line.unwrap_or_else(|| panic!("no path in {said}"));
        PathBuf::from(line.split(", ").next().unwrap())
    })
}

#[test]
fn it_is_static_and_at_most_three_mebibytes() {
    let file = read(binary());
    assert_eq!(static_check::what_it_needs(&file), Ok(vec![]));
    // The check would see it: this test itself is a dynamic program of the same kind.
    let own = read(std::env::current_exe().unwrap());
    let needs = static_check::what_it_needs(&own).unwrap();
    if !cfg!(target_feature = "crt-static") {
        assert_eq!(needs, ["a dynamic loader", "a shared library"]);
    }
    let bytes = fs::metadata(binary()).unwrap().len();
    assert!(bytes <= MOST_BYTES, "{bytes} bytes");
}

#[test]
fn it_names_no_folder_of_this_machine() {
    let file = read(binary());
    for folder in [
        root().to_owned(),
        PathBuf::from(std::env::var_os("HOME").unwrap()),
    ] {
        let name = folder.to_str().unwrap();
        // A home directly below the root is no telling name.
        if folder.components().count() > 2 {
            assert!(find(&file, name.as_bytes()).is_none(), "it names {name}");
        }
    }
    assert!(find(&file, b"/.cargo/registry/").is_none());
}

#[test]
fn the_tarball_is_the_same_each_time_and_its_sums_are_right() {
    binary();
    let scratch = TempDir::new().unwrap();
    let dist = format!("DIST={}", scratch.path().display());
    let pack = || {
        make(&["dist", &dist]);
        let found = fs::read_dir(scratch.path())
            .unwrap()
            .map(|entry| entry.unwrap().path());
        let found: Vec<PathBuf> = found.collect();
        assert_eq!(found.len(), 1, "{found:?}");
        (found[0].clone(), read(&found[0]))
    };
    let (path, first) = pack();
    assert!(first == pack().1, "the tarballs differ");

    let unpacked = scratch.path().join("unpacked");
    fs::create_dir(&unpacked).unwrap();
    run(Command::new("tar")
        .arg("-xzf")
        .arg(&path)
        .arg("-C")
        .arg(&unpacked));
    let name = path.file_name().unwrap().to_str().unwrap();
    let folder = unpacked.join(name.strip_suffix(".tar.gz").unwrap());
    let names = fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name());
    let names: BTreeSet<String> = names.map(|name| name.into_string().unwrap()).collect();
    let expected = ["LICENSE", "README.md", "SHA256SUMS", "mino"];
    assert_eq!(names, expected.map(str::to_owned).into());
    run(Command::new("sha256sum")
        .args(["-c", "SHA256SUMS"])
        .current_dir(&folder));
    let version = run(Command::new(folder.join("mino")).arg("version"));
    assert_eq!(version, concat!("mino ", env!("CARGO_PKG_VERSION"), "\n"));
}

fn run(command: &mut Command) -> String {
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{command:?}: {said}{errors}");
    said
}

// --- an empty root directory ------------------------------------------------------------------

/// A root directory that holds the binary, its configuration, and what a test puts there.
struct EmptyRoot(TempDir);

impl EmptyRoot {
    /// `None`, and says so, where this account may not change the root directory.
    fn new(test: &str, base_url: &str) -> Option<EmptyRoot> {
        if !rustix::process::geteuid().is_root() {
            eprintln!("SKIPPED: {test}: only root may change the root directory");
            return None;
        }
        let root = EmptyRoot(TempDir::new().unwrap());
        root.copy(binary(), "mino");
        // Plain HTTP to a name is for servers that need no key.
        let config = json!({"base_url": base_url, "model": "test-model", "api_key": ""});
        root.write("home/config.json", config.to_string());
        Some(root)
    }

    fn path(&self, name: &str) -> PathBuf {
        let path = self.0.path().join(name.trim_start_matches('/'));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        path
    }

    fn write(&self, name: &str, bytes: impl AsRef<[u8]>) {
        fs::write(self.path(name), bytes).unwrap();
    }

    /// By another process: a file that this one has open for writing can't be executed, also while
    /// only a child of another test, just forked, still has it open.
    fn copy(&self, from: &Path, name: &str) {
        run(Command::new("cp").arg(from).arg(self.path(name)));
    }

    /// Every file below the root, sorted.
    fn files(&self) -> BTreeSet<String> {
        fn walk(folder: &Path, base: &Path, found: &mut BTreeSet<String>) {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    walk(&path, base, found);
                } else {
                    let name = path.strip_prefix(base).unwrap();
                    found.insert(name.to_str().unwrap().to_owned());
                }
            }
        }
        let mut found = BTreeSet::new();
        walk(self.0.path(), self.0.path(), &mut found);
        found
    }

    fn mino(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("chroot");
        command
            .arg(self.0.path())
            .arg("/mino")
            .args(arguments)
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .env("MINO_HOME", "/home")
            .env("HOME", "/home")
            .env("TERM", "xterm")
            .stdin(Stdio::null());
        command
    }

    /// Asks one question; the exit code and both outputs.
    fn ask(&self, question: &str) -> (Option<i32>, String, String) {
        let output = self.mino(&["ask", question]).output().expect("chroot");
        (
            output.status.code(),
            String::from_utf8_lossy(&output.stdout).into_owned(),
            String::from_utf8_lossy(&output.stderr).into_owned(),
        )
    }

    #[track_caller]
    fn assert_answers(&self, answer: &str) {
        let (code, answered, errors) = self.ask("Hello?");
        let shown = (code, &*answered);
        assert_eq!(shown, (Some(0), &*format!("{answer}\n")), "{errors}");
    }
}

/// The server's address under a name that only a lookup can find.
fn named(endpoint: &Endpoint, name: &str) -> String {
    format!("http://{name}:{}/v1", endpoint.address().port())
}

#[test]
fn in_an_empty_root_it_answers_a_question() {
    let endpoint = Endpoint::start([text("Hello from nowhere.")]);
    let test = "in_an_empty_root_it_answers_a_question";
    let Some(root) = EmptyRoot::new(test, &endpoint.base_url()) else {
        return;
    };
    let before: BTreeSet<String> = ["home/config.json", "mino"].map(str::to_owned).into();
    assert_eq!(root.files(), before);
    root.assert_answers("Hello from nowhere.");
    // No /dev/urandom was there, and yet the conversation has its name.
    let new: Vec<String> = root.files().difference(&before).cloned().collect();
    let is_session = |name: &String| {
        let id = name
            .strip_prefix("home/sessions/")
            .and_then(|name| name.strip_suffix(".jsonl"));
        id.is_some_and(|id| id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit()))
    };
    assert_eq!(new.len(), 3, "{new:?}");
    assert_eq!(
        new.iter().filter(|name| is_session(name)).count(),
        1,
        "{new:?}"
    );
}

#[test]
fn with_a_bash_beside_it_it_runs_a_command() {
    let endpoint = Endpoint::start([
        call(
            "call_1",
            "read -r line; echo \"pid $$ in $PWD, read <$line>\"",
        ),
        text("Done."),
    ]);
    let test = "with_a_bash_beside_it_it_runs_a_command";
    let Some(root) = EmptyRoot::new(test, &endpoint.base_url()) else {
        return;
    };
    copy_bash(&root);
    let mut tty = Tty::start(SIZE, &root.mino(&[]));
    tty.wait_for("You> ");
    tty.send_line("Where are you?");
    tty.answer("y");
    tty.wait_for("[Tool result: completed; exit code 0]");
    tty.wait_for("in /, read <>");
    tty.wait_for("Assistant> Done.");
    tty.wait_for("You> ");
    tty.send([4]);
    assert_eq!(tty.wait_exit(), 0);
    endpoint.assert_all_used();
}

#[test]
fn without_a_bash_it_says_so() {
    let endpoint = Endpoint::start([call("call_1", "true"), text("Pity.")]);
    let Some(root) = EmptyRoot::new("without_a_bash_it_says_so", &endpoint.base_url()) else {
        return;
    };
    let mut tty = Tty::start(SIZE, &root.mino(&[]));
    tty.wait_for("You> ");
    tty.send_line("Where are you?");
    tty.answer("y");
    tty.wait_for("[Tool result: failed]");
    tty.wait_for("bash not found");
    tty.wait_for("Assistant> Pity.");
    tty.wait_for("You> ");
    tty.send([4]);
    assert_eq!(tty.wait_exit(), 0);
}

/// Bash, and where it isn't static the loader and the libraries that `ldd` lists.
fn copy_bash(root: &EmptyRoot) {
    let bash = Path::new("/bin/bash");
    root.copy(bash, "bin/bash");
    if static_check::what_it_needs(&read(bash)).is_ok_and(|needs| needs.is_empty()) {
        return;
    }
    let listed = run(Command::new("ldd").arg(bash));
    // `name => path (address)`, or the path alone for the loader; the kernel's own part has none.
    for path in listed
        .split_whitespace()
        .filter(|word| word.starts_with('/'))
    {
        root.copy(Path::new(path), path);
    }
}

// --- names ------------------------------------------------------------------------------------

#[test]
fn a_name_is_found_in_the_hosts_file() {
    let endpoint = Endpoint::start([text("By the hosts file.")]);
    let base_url = named(&endpoint, "model.test");
    let Some(root) = EmptyRoot::new("a_name_is_found_in_the_hosts_file", &base_url) else {
        return;
    };
    root.write("etc/hosts", "127.0.0.1 localhost\n127.0.0.1 model.test\n");
    root.assert_answers("By the hosts file.");
}

#[test]
fn a_name_is_found_by_dns_and_one_that_is_not_there_is_said() {
    let test = "a_name_is_found_by_dns_and_one_that_is_not_there_is_said";
    let endpoint = Endpoint::start([text("By DNS.")]);
    let base_url = named(&endpoint, "model.test");
    let Some(root) = EmptyRoot::new(test, &base_url) else {
        return;
    };
    let Some(dns) = Dns::start(test) else {
        return;
    };
    root.write("etc/resolv.conf", dns.configuration());
    root.assert_answers("By DNS.");
    assert_eq!(dns.asked(), "model.test");

    let config = json!({
        "base_url": named(&endpoint, "nobody.test"), "model": "test-model", "api_key": "",
    });
    root.write("home/config.json", config.to_string());
    let (code, answered, errors) = root.ask("Hello?");
    assert_eq!((code, &*answered), (Some(1), ""), "{errors}");
    assert!(
        errors.contains("Cannot connect to \"nobody.test:"),
        "{errors}"
    );
}

/// Found on distributions with systemd: `hosts: mymachines resolve [!UNAVAIL=return] files
/// myhostname dns`. A statically linked glibc loaded those modules of the system's own glibc, and
/// crashed where that was a newer one. Here each is a library that crashes whoever loads it.
#[test]
fn hostile_name_service_modules_are_never_loaded() {
    let test = "hostile_name_service_modules_are_never_loaded";
    let endpoint = Endpoint::start([text("By the hosts file."), text("By DNS.")]);
    let base_url = named(&endpoint, "model.test");
    let Some(root) = EmptyRoot::new(test, &base_url) else {
        return;
    };
    let Some(dns) = Dns::start(test) else {
        return;
    };
    let source = root.path("hostile.c");
    fs::write(
        &source,
        "__attribute__((constructor)) void load(void) { __builtin_trap(); }\n",
    )
    .unwrap();
    let library = root.path("hostile.so");
    run(Command::new("cc")
        .args(["-shared", "-fPIC", "-nostdlib", "-o"])
        .args([&library, &source]));
    let folders = [
        "lib",
        "lib64",
        "usr/lib",
        "usr/lib64",
        "lib/x86_64-linux-gnu",
        "usr/lib/x86_64-linux-gnu",
        "lib/aarch64-linux-gnu",
        "usr/lib/aarch64-linux-gnu",
    ];
    for folder in folders {
        for module in ["mymachines", "resolve", "myhostname", "files", "dns"] {
            root.copy(&library, &format!("{folder}/libnss_{module}.so.2"));
        }
    }
    let hosts = "hosts: mymachines resolve [!UNAVAIL=return] files myhostname dns\n";
    root.write(
        "etc/nsswitch.conf",
        format!("passwd: files systemd\n{hosts}"),
    );
    root.write("etc/hosts", "127.0.0.1 model.test\n");
    root.assert_answers("By the hosts file.");
    root.write("etc/hosts", "127.0.0.1 localhost\n");
    root.write("etc/resolv.conf", dns.configuration());
    root.assert_answers("By DNS.");
}

/// A name server that knows `model.test`, at a loopback address of its own: other tests on this
/// machine may be running one at the same time, and its port can't be chosen.
struct Dns {
    address: Ipv4Addr,
    asked: Receiver<String>,
}

impl Dns {
    /// `None`, and says so, where this account may not have the port.
    fn start(test: &str) -> Option<Dns> {
        let socket = loop {
            let [a, b, c, _] = random_bytes();
            match UdpSocket::bind((Ipv4Addr::new(127, a, b, c.max(1)), 53)) {
                Ok(socket) => break socket,
                Err(error) if error.kind() == ErrorKind::AddrInUse => {}
                Err(error) => {
                    eprintln!("SKIPPED: {test}: no name server at port 53: {error}");
                    return None;
                }
            }
        };
        let SocketAddr::V4(address) = socket.local_addr().unwrap() else {
            unreachable!("it was bound to a version 4 address");
        };
        let (sender, asked) = mpsc::channel();
        thread::spawn(move || {
            let mut packet = [0; 512];
            while let Ok((length, client)) = socket.recv_from(&mut packet) {
                let (name, answer) = answer(&packet[..length]);
                socket.send_to(&answer, client).unwrap();
                // The test may be over.
                let _ = sender.send(name);
            }
        });
        let address = *address.ip();
        Some(Dns { address, asked })
    }

    fn configuration(&self) -> String {
        format!(
            "nameserver {}\noptions timeout:5 attempts:3\n",
            self.address
        )
    }

    /// The name that was asked for first.
    fn asked(&self) -> String {
        self.asked.recv_timeout(PATIENCE).expect("a question")
    }
}

fn random_bytes() -> [u8; 4] {
    let id = mino::session::home::SessionId::new().unwrap().to_string();
    u32::from_str_radix(&id[..8], 16).unwrap().to_ne_bytes()
}

/// The name in a question, and the answer to it (RFC 1035, section 4).
fn answer(question: &[u8]) -> (String, Vec<u8>) {
    const HEADER_BYTES: usize = 12;
    const ADDRESS_OF_VERSION_4: [u8; 2] = [0, 1];
    let (mut labels, mut at) = (Vec::new(), HEADER_BYTES);
    while question[at] > 0 {
        let end = at + 1 + usize::from(question[at]);
        labels.push(String::from_utf8_lossy(&question[at + 1..end]).to_lowercase());
        at = end;
    }
    let (name, kind, end) = (labels.join("."), &question[at + 1..at + 3], at + 5);
    let is_known = name == "model.test";
    let has_address = is_known && kind == ADDRESS_OF_VERSION_4;
    let mut answer = question[..2].to_vec();
    // A recursive answer; code 3 says that there is no such name.
    answer.extend([0x81, if is_known { 0x80 } else { 0x83 }]);
    answer.extend([0, 1, 0, u8::from(has_address), 0, 0, 0, 0]);
    answer.extend(&question[HEADER_BYTES..end]);
    if has_address {
        // The name is that of the question; a minute to live; four bytes.
        answer.extend([0xc0, 0x0c, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 127, 0, 0, 1]);
    }
    (name, answer)
}
