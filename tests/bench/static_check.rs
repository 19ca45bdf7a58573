//! `static-check FILE`: says that an ELF file is static, or fails and says why it isn't.
//!
//! Only std and only this file, so that `rustc` alone can build it for `make static`.

use std::process::ExitCode;

fn main() -> ExitCode {
    let path = std::env::args().nth(1).expect("static-check FILE");
    let file = match std::fs::read(&path) {
        Ok(file) => file,
        Err(error) => {
            eprintln!("static: cannot read {path}: {error}");
            return ExitCode::FAILURE;
        }
    };
    match what_it_needs(&file) {
        Ok(needs) if needs.is_empty() => {
            let bytes = file.len();
            println!("static: {path}, {bytes} bytes, no loader and no shared library");
            ExitCode::SUCCESS
        }
        Ok(needs) => {
            eprintln!("static: {path} is not static: {}", needs.join(", "));
            ExitCode::FAILURE
        }
        Err(why) => {
            eprintln!("static: cannot judge {path}: {why}");
            ExitCode::FAILURE
        }
    }
}

/// What a file for a 64-bit little-endian machine needs besides a kernel (elf(5)).
pub fn what_it_needs(file: &[u8]) -> Result<Vec<&'static str>, &'static str> {
    const LOADER_SEGMENT: u64 = 3;
    const DYNAMIC_SEGMENT: u64 = 2;
    const NEEDED: u64 = 1;
    let number = |at: u64, bytes: usize| {
        let at = usize::try_from(at).ok()?;
        let found = file.get(at..at.checked_add(bytes)?)?;
        Some(
            found
                .iter()
                .rev()
                .fold(0, |all, &byte| all << 8 | u64::from(byte)),
        )
    };
    if !file.starts_with(b"\x7fELF\x02\x01") {
        return Err("it is no ELF file of 64 bits, little-endian");
    }
    let header = (number(32, 8), number(54, 2), number(56, 2));
    let (Some(start), Some(size), Some(count)) = header else {
        return Err("it ends within its header");
    };
    let mut needs = Vec::new();
    for segment in (0..count).map(|index| start.saturating_add(index * size)) {
        let fields = (
            number(segment, 4),
            number(segment + 8, 8),
            number(segment + 32, 8),
        );
        let (Some(kind), Some(offset), Some(bytes)) = fields else {
            return Err("it ends within its segments");
        };
        let entries = (offset..offset.saturating_add(bytes)).step_by(16);
        match kind {
            LOADER_SEGMENT => needs.push("a dynamic loader"),
            DYNAMIC_SEGMENT
                if entries
                    .map(|at| number(at, 8))
                    .any(|tag| tag == Some(NEEDED)) =>
            {
                needs.push("a shared library");
            }
            _ => {}
        }
    }
    Ok(needs)
}
