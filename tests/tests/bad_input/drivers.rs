//! Drivers of engines: what is wrong with the file is said by `check` and `serve`, what is wrong with what
//! it says when it is asked.

use crate::{PageRow, Report, run};
use anyhow::{Context, Result};
use pointsman_tests::{driver_in_c, root};
use std::path::Path;

/// How the driver's file comes to be.
enum File {
    Missing,
    Folder,
    Is(&'static [u8]),
    /// so many hundredths of the example's
    Cut(usize),
    /// `host/engine/tests/drivers/faulty.c` with this fault
    Fault(&'static str),
    /// C, in a function that is run when it is loaded
    AtLoad(&'static str),
}

/// (what, file, text): refused by `check` and `serve` before anything starts.
const REFUSED: &[(&str, File, &str)] = &[
    ("no file", File::Missing, "No such file or directory"),
    ("a folder", File::Folder, "wanted a regular file"),
    (
        "an empty file",
        File::Is(b""),
        "wanted a shared library (ELF)",
    ),
    (
        "a text",
        File::Is(b"hello there, this is a driver"),
        "found something else",
    ),
    (
        "a library of 32 bits",
        File::Is(b"\x7fELF\x01\x01\x01\0\0\0\0\0\0\0\0\0"),
        "found one of another word size or byte order",
    ),
    (
        "a header alone",
        File::Is(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0"),
        "it is cut: the header ends at byte 64, the file at 16",
    ),
    ("a tenth of it", File::Cut(10), "it is cut: segment"),
    ("half of it", File::Cut(50), "it is cut: segment"),
    (
        "all but its end",
        File::Cut(99),
        "it is cut: the table of sections ends at byte",
    ),
    (
        "without the function",
        File::Fault("NO_SYMBOL"),
        "wanted the function `pointsman_engine_v1`, found none",
    ),
    (
        "another version",
        File::Fault("VERSION"),
        "wanted a table of version 1, found 7",
    ),
    (
        "a table that is short",
        File::Fault("SHORT_TABLE"),
        "wanted a table of at least 72 bytes, found 64",
    ),
    ("no table", File::Fault("NO_TABLE"), "returned no table"),
    (
        "a table with a hole",
        File::Fault("MISSING_FUNCTION"),
        "wanted the function `knob_set` in its table, found null",
    ),
    (
        "it crashes while it is loaded",
        File::AtLoad("volatile int *volatile nowhere = 0; *nowhere = 1;"),
        "a process that loaded it died of signal 11",
    ),
];

/// (what, fault, text): said by `check --engines`; in a running host the call fails, requests flow on.
const ASKED: &[(&str, &str, &str)] = &[
    ("it does not open", "OPEN_REFUSES", "no such device"),
    ("it opens nothing", "NO_HANDLE", "`open` gave no engine"),
    ("it has no ranks", "NO_RANKS", "0 ranks: wanted 1 to 65536"),
    (
        "it has fewer than configured",
        "NONE",
        "ranks = 2 in the configuration, the engine has 1",
    ),
    (
        "it does not come back",
        "HANG_IN_RANKS",
        "the driver did not answer within 300ms",
    ),
];

/// (what, fault, text): said by `engine driver`.
const GARBAGE: &[(&str, &str, &str)] = &[
    (
        "a count beyond all bounds",
        "GARBAGE_COUNT",
        "entries: wanted at most 256",
    ),
    (
        "a length beyond all bounds",
        "GARBAGE_LENGTH",
        "bytes: wanted at most 256",
    ),
    ("text that is nowhere", "NULL_TEXT", "text of 7 bytes"),
    ("text that is none", "NOT_UTF8", "text that is not UTF-8"),
];

fn faulty(fault: &str, to: &Path) -> Result<()> {
    let source = root().join("host/engine/tests/drivers/faulty.c");
    driver_in_c(&source, &[format!("-DFAULT_{fault}")], to)
}

impl File {
    fn make(&self, at: &Path) -> Result<()> {
        match self {
            File::Missing => {}
            File::Folder => std::fs::create_dir(at)?,
            File::Is(bytes) => std::fs::write(at, bytes)?,
            File::Cut(hundredths) => {
                let source = root().join("examples/engine-driver-c/driver.c");
                driver_in_c(&source, &[], at)?;
                let whole = std::fs::read(at)?;
                std::fs::write(at, &whole[..whole.len() * hundredths / 100])?;
            }
            File::Fault(fault) => faulty(fault, at)?,
            File::AtLoad(body) => {
                let source = at.with_extension("c");
                let text =
                    format!("__attribute__((constructor)) static void f(void) {{ {body} }}\n");
                std::fs::write(&source, text)?;
                driver_in_c(&source, &[], at)?;
            }
        }
        Ok(())
    }
}

fn config(driver: &Path, ranks: u32) -> String {
    format!(
        "[listen]\naddress = \"127.0.0.1:0\"\n[admin]\naddress = \"127.0.0.1:0\"\n\
         [[pool]]\nname = \"p\"\ndialect = \"vllm\"\n\
         endpoints = [{{ name = \"a\", url = \"http://127.0.0.1:9\", ranks = {ranks} }}]\n\
         driver = {{ kind = \"library\", library = {driver:?}, deadline = \"300ms\" }}\n"
    )
}

fn fits(said: (i32, String), text: &str) -> Result<()> {
    let (status, said) = said;
    (status == 1 && said.contains(text))
        .then_some(())
        .with_context(|| format!("{status}, no {text:?} in {said}"))
}

#[tokio::test]
async fn a_drivers_file_that_is_none_is_refused_before_anything_starts() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("p.toml");
    let path = path.to_str().unwrap();
    let mut report = Report::default();
    for ((what, file, text), n) in REFUSED.iter().zip(0..) {
        let driver = folder.path().join(format!("driver-{n}.so"));
        file.make(&driver)?;
        std::fs::write(path, config(&driver, 1))?;
        for command in ["check", "serve"] {
            let said = run(&[command, "--config", path]).await?;
            let named = said.1.contains(&format!("driver-{n}.so"));
            report.row(what, fits(said, text));
            report.row(what, named.then_some(()).context("it is not named"));
        }
    }
    report.close();
    Ok(())
}

#[tokio::test]
async fn a_driver_that_answers_wrong_or_never_is_told_when_it_is_asked() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("p.toml");
    let path = path.to_str().unwrap();
    let driver = folder.path().join("driver.so");
    let mut report = Report::default();
    for (what, fault, text) in ASKED {
        let _ = std::fs::remove_file(&driver);
        faulty(fault, &driver)?;
        std::fs::write(path, config(&driver, 2))?;
        report.row(
            what,
            fits(run(&["check", "--engines", "--config", path]).await?, text),
        );
    }
    for (what, fault, text) in GARBAGE {
        let _ = std::fs::remove_file(&driver);
        faulty(fault, &driver)?;
        let driver = driver.to_str().unwrap();
        report.row(what, fits(run(&["engine", "driver", driver]).await?, text));
    }
    report.close();
    Ok(())
}

/// For the page.
pub(crate) fn rows() -> Vec<PageRow> {
    let row = |what: &str, when: &str, text: &str| {
        let text = format!("… {text} …");
        [what.to_owned(), when.to_owned(), text, String::new()]
    };
    let refused = (REFUSED.iter()).map(|(what, _, text)| row(what, "`check`, `serve`", text));
    let asked = (ASKED.iter()).map(|(what, _, text)| row(what, "`check --engines`", text));
    let garbage = (GARBAGE.iter()).map(|(what, _, text)| row(what, "`engine driver`", text));
    refused.chain(asked).chain(garbage).collect()
}
