//! The rules of the house, read from the source itself: who may import whom, where `unsafe` lives,
//! what the program is built from.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Every source file, as (path below `src`, text).
fn sources() -> Vec<(String, String)> {
    fn walk(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                walk(&path, found)
            } else {
                found.push(path)
            }
        }
    }
    let src = root().join("src");
    let mut paths = Vec::new();
    walk(&src, &mut paths);
    assert!(paths.len() > 15, "the walk found too little: {paths:?}");
    paths
        .iter()
        .map(|path| {
            (
                path.strip_prefix(&src).unwrap().display().to_string(),
                read(path),
            )
        })
        .collect()
}

/// The code without comments and without what only tests use, at its bottom.
fn code(text: &str) -> String {
    let code = text.split("\n#[cfg(test)]").next().unwrap();
    code.lines()
        .map(|line| line.split("//").next().unwrap())
        .collect::<Vec<_>>()
        .join("\n")
}

/// Every path below `crate` that the code names, one for each name in braces.
fn imports(code: &str) -> Vec<String> {
    let mut paths = Vec::new();
    for (position, _) in code.match_indices("crate::") {
        let rest = &code[position + 7..];
        match rest
            .strip_prefix('{')
            .and_then(|rest| rest.split_once("};"))
        {
            Some((names, _)) => paths.extend(
                names
                    .split(',')
                    .map(|name| name.trim().to_owned())
                    .filter(|name| !name.is_empty()),
            ),
            None => paths.push(
                rest.chars()
                    .take_while(|c| c.is_alphanumeric() || matches!(c, '_' | ':'))
                    .collect(),
            ),
        }
    }
    paths
}

/// What may be imported, besides the ground floor and the module's own folder.
fn allowed(file: &str) -> &'static [&'static str] {
    match if file == "gateway/transcript.rs" {
        file
    } else {
        file.split('/').next().unwrap()
    } {
        "app.rs" => &["agent", "gateway", "model", "session", "tools"],
        "main.rs" => &["app"],
        "agent.rs" => &["model", "session", "tools"],
        // The transcript of `mino log` is made from the journal's records.
        "gateway/transcript.rs" => &["session::Entry", "session::record"],
        "gateway" => &["agent"],
        "tools" => &["session::Started"],
        _ => &[],
    }
}

const GROUND_FLOOR: [&str; 4] = ["limits", "step", "sys", "text"];

#[test]
fn imports_point_one_way() {
    let mut seen = 0;
    for (file, text) in sources() {
        let own = file.split('/').next().unwrap().trim_end_matches(".rs");
        for path in imports(&code(&text)) {
            let target = path.split("::").next().unwrap();
            let on_the_ground = GROUND_FLOOR.contains(&target) && !GROUND_FLOOR.contains(&own);
            let in_the_table = allowed(&file)
                .iter()
                .any(|allowed| path == *allowed || path.starts_with(&format!("{allowed}::")));
            let is_limit = target == "limits" && own == "sys";
            assert!(
                target == own || on_the_ground || in_the_table || is_limit,
                "{file} must not import {path}"
            );
            seen += 1;
        }
    }
    assert!(
        seen > 60,
        "only {seen} imports were found: the search is broken"
    );
}

#[test]
fn unsafe_and_libc_live_in_one_folder_and_each_block_says_why() {
    let mut blocks = 0;
    for (file, text) in sources() {
        let code = code(&text);
        if !file.starts_with("sys/") {
            let words = code.replace("deny(unsafe_code)", "");
            assert!(
                !words.contains("unsafe") && !words.contains("libc"),
                "{file} names unsafe or libc"
            );
            continue;
        }
        let lines: Vec<&str> = text.lines().collect();
        for (number, line) in lines.iter().enumerate() {
            let line = line.split("//").next().unwrap();
            if !line.contains("unsafe {")
                && !line.contains("unsafe fn")
                && !line.contains("unsafe extern")
            {
                continue;
            }
            blocks += 1;
            let reason = lines[..number]
                .iter()
                .rev()
                .take_while(|line| line.trim_start().starts_with("//"))
                .any(|line| line.contains("SAFETY:"));
            assert!(
                reason,
                "{file}:{}: unsafe without a SAFETY line right above",
                number + 1
            );
        }
    }
    assert!(
        blocks > 10,
        "only {blocks} blocks were found: the search is broken"
    );
}

#[test]
fn nothing_prints_or_panics_by_macro() {
    for (file, text) in sources() {
        let code = code(&text);
        for word in [
            "println!",
            "eprintln!",
            "print!(",
            "eprint!(",
            "todo!",
            "unimplemented!",
            "dbg!",
            "panic!(",
            ".unwrap()",
            ".expect(",
        ] {
            assert!(!code.contains(word), "{file} uses {word}");
        }
    }
}

#[test]
fn every_number_has_its_reason_and_its_unit() {
    let text = read("src/limits.rs");
    let mut documented = false;
    let mut constants = 0;
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("pub const ") {
            let name = rest.split(':').next().unwrap();
            let unit = name.rsplit('_').next().unwrap();
            let units = [
                "BYTES",
                "SECONDS",
                "MILLIS",
                "CHARS",
                "LINES",
                "ITEMS",
                "REQUESTS",
                "CALLS",
                "RETRIES",
                "ROUNDS",
                "COPIES",
                "GROWTH",
                "ROWS",
                "COLUMNS",
                "PROCESSES",
                "FDS",
                "TRIES",
                "DESCRIPTORS",
                "LOOKS",
                "HOPS",
            ];
            assert!(units.contains(&unit), "{name}: the unit is not last");
            assert!(documented, "{name} has no reason beside it");
            constants += 1;
        }
        documented = line.starts_with("///");
    }
    assert!(constants > 20, "only {constants} constants were found");
}

#[test]
fn the_run_time_dependencies_are_the_five() {
    let manifest = read("Cargo.toml");
    let section = manifest
        .split("[dependencies]")
        .nth(1)
        .unwrap()
        .split("\n[")
        .next()
        .unwrap();
    let names: BTreeSet<&str> = section
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split_once('='))
        .map(|(name, _)| name.trim())
        .collect();
    assert_eq!(
        names,
        BTreeSet::from(["getrandom", "libc", "serde", "serde_json", "ureq"])
    );
    assert!(
        section.contains("default-features = false, features = [\"rustls\"]"),
        "ureq without gzip, with rustls"
    );
}

#[test]
fn the_tree_stays_small() {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let tree = Command::new(cargo)
        .args([
            "tree",
            "--locked",
            "--offline",
            "--edges",
            "normal",
            "--prefix",
            "none",
            "--no-dedupe",
        ])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(
        tree.status.success(),
        "{}",
        String::from_utf8_lossy(&tree.stderr)
    );
    let crates: BTreeSet<String> = String::from_utf8(tree.stdout)
        .unwrap()
        .lines()
        .map(|line| line.trim_end_matches(" (*)").to_owned())
        .collect();
    assert!(
        crates.iter().any(|name| name.starts_with("rustls ")),
        "{crates:?}"
    );
    assert!(crates.len() <= 40, "{} crates: {crates:?}", crates.len());
}

#[test]
fn the_readme_names_this_version_and_every_make_target_it_promises() {
    let readme = read("README.md");
    assert!(
        readme.contains(&format!("mino {}", env!("CARGO_PKG_VERSION"))),
        "the README names another version"
    );
    let makefile = read("Makefile");
    for (position, _) in readme.match_indices("make ") {
        let target: String = readme[position + 5..]
            .chars()
            .take_while(|c| c.is_ascii_lowercase())
            .collect();
        if readme[..position].ends_with('`') && !target.is_empty() {
            assert!(
                makefile.contains(&format!("\n{target}:")),
                "the README promises `make {target}`"
            );
        }
    }
}

#[test]
fn the_top_level_holds_what_it_should_and_no_more() {
    let known = [
        "Cargo.lock",
        "Cargo.toml",
        "LICENSE",
        "Makefile",
        "README.md",
        "src",
        "tests",
        ".ci",
        ".git",
        ".gitignore",
        "target",
        "dist",
    ];
    for entry in fs::read_dir(root()).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(
            known.contains(&name.as_str()),
            "{name} does not belong on the top level"
        );
    }
}
