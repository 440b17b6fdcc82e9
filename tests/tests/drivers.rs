//! Drivers' files that are cut or damaged, and drivers that crash or hang while they are loaded: refused
//! by name, and no process dies of them.

#![allow(clippy::indexing_slicing, reason = "a test's helper fails the test")]

use anyhow::{Context, Result, ensure};
use pointsman_tests::{driver_in_c, pointsman, root};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn example(folder: &Path) -> Result<PathBuf> {
    let driver = folder.join("driver.so");
    let source = root().join("examples/engine-driver-c/driver.c");
    driver_in_c(&source, &[], &driver)?;
    Ok(driver)
}

/// Exit status, and what it said; an error if it died of a signal.
fn said(output: &Output) -> Result<(i32, String)> {
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let status = output.status;
    Ok((
        status
            .code()
            .with_context(|| format!("it died: {status}: {text}"))?,
        text,
    ))
}

fn opened(driver: &Path) -> Result<(i32, String)> {
    let mut command = Command::new(pointsman());
    said(&command.args(["engine", "driver"]).arg(driver).output()?)
}

/// Numbers that look random, and are the same each time.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % (limit as u64)).unwrap_or(0)
    }
}

#[test]
fn a_driver_that_is_cut_is_refused_by_name_and_length() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let whole = std::fs::read(example(folder.path())?)?;
    for n in 0..60 {
        let length = whole.len() * n / 60;
        let cut = folder.path().join(format!("cut-{n}.so"));
        std::fs::write(&cut, &whole[..length])?;
        let (status, text) = opened(&cut).with_context(|| format!("{length} bytes"))?;
        ensure!(
            status == 1 && text.contains(&format!("cut-{n}.so")),
            "{length}: {text}"
        );
    }
    Ok(())
}

#[test]
fn a_driver_whose_headers_are_damaged_is_refused_or_works_and_nothing_dies_of_it() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let whole = std::fs::read(example(folder.path())?)?;
    let mut numbers = Numbers(0x9e37_79b9_7f4a_7c15);
    let mut refused = 0;
    let segments = usize::from(whole[56]);
    for n in 0..400 {
        let mut damaged = whole.clone();
        // The header, and the table of segments behind it.
        for _ in 0..=numbers.below(n % 4 + 1) {
            let at = numbers.below(64 + 56 * segments);
            damaged[at] ^= 1 << numbers.below(8);
        }
        let file = folder.path().join(format!("damaged-{n}.so"));
        std::fs::write(&file, damaged)?;
        let (status, text) = opened(&file).with_context(|| format!("damage {n}"))?;
        ensure!(status == 0 || text.contains("pointsman: "), "{n}: {text}");
        refused += i32::from(status != 0);
    }
    ensure!(refused > 200, "damage that is hardly ever seen: {refused}");
    Ok(())
}

#[test]
fn a_driver_that_crashes_or_ends_the_process_while_it_is_loaded_is_refused_by_check_and_serve()
-> Result<()> {
    let folder = tempfile::tempdir()?;
    let good = example(folder.path())?;
    let bodies = [
        (
            "crash",
            "volatile int *volatile p = (int *)16; *p = 1;",
            "died of signal 11",
        ),
        ("exit", "_exit(7);", "ended with exit status: 7"),
        ("abort", "abort();", "died of signal 6"),
        (
            "calm",
            "exit(0);",
            "its own code ended a process that loaded it",
        ),
        (
            "words",
            "puts(\"fine\"); exit(0);",
            "its own code ended a process that loaded it",
        ),
    ];
    for (name, body, wanted) in bodies {
        let (source, driver) = (
            folder.path().join(format!("{name}.c")),
            folder.path().join(format!("{name}.so")),
        );
        std::fs::write(
            &source,
            format!(
                "#include <stdio.h>\n#include <stdlib.h>\n#include <unistd.h>\n\
                 __attribute__((constructor)) static void at_load(void) {{ {body} }}\n"
            ),
        )?;
        driver_in_c(&source, &[], &driver)?;
        let config = folder.path().join("p.toml");
        for command in ["check", "serve"] {
            std::fs::write(&config, with_driver(&driver))?;
            let mut run = Command::new(pointsman());
            let (status, text) = said(&run.args([command, "--config"]).arg(&config).output()?)?;
            ensure!(
                status == 1 && text.contains(wanted),
                "{name}: {command}: {text}"
            );
            ensure!(text.contains(&format!("{name}.so")), "{text}");
        }
    }
    let config = folder.path().join("p.toml");
    std::fs::write(&config, with_driver(&good))?;
    let mut check = Command::new(pointsman());
    let (status, text) = said(&check.args(["check", "--config"]).arg(&config).output()?)?;
    ensure!(status == 0, "{text}");
    Ok(())
}

#[test]
fn a_driver_that_hangs_while_it_is_loaded_is_refused() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (source, driver) = (folder.path().join("hang.c"), folder.path().join("hang.so"));
    // Also one that nobody could hear any more.
    let text = "#include <unistd.h>\n\
                __attribute__((constructor)) static void at_load(void) { close(1); for (;;) pause(); }\n";
    std::fs::write(&source, text)?;
    driver_in_c(&source, &[], &driver)?;
    let (status, text) = opened(&driver)?;
    ensure!(
        status == 1 && text.contains("its initialisers hang"),
        "{text}"
    );
    Ok(())
}

fn with_driver(driver: &Path) -> String {
    format!(
        "[[pool]]\nname = \"p\"\nendpoints = [{{ name = \"a\", url = \"http://127.0.0.1:9\" }}]\n\
         driver = {{ kind = \"library\", library = {driver:?} }}\n"
    )
}

fn faulty(folder: &Path, fault: &str) -> Result<PathBuf> {
    let driver = folder.join(format!("{fault}.so"));
    let source = root().join("host/engine/tests/drivers/faulty.c");
    driver_in_c(&source, &[format!("-DFAULT_{fault}")], &driver)?;
    Ok(driver)
}

#[test]
fn a_driver_is_closed_when_a_command_ends_and_one_that_hangs_in_that_is_told() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (good, hangs) = (
        faulty(folder.path(), "SAYS_CLOSED")?,
        faulty(folder.path(), "HANG_IN_CLOSE")?,
    );
    let config = folder.path().join("p.toml");
    let closed = "the driver is closed";
    std::fs::write(&config, with_driver(&good))?;
    let (config, out) = (config.as_os_str(), folder.path().join("out"));
    let check = ["check", "--engines", "--config"].map(OsStr::new);
    let profile = ["engine", "profile", "--duration", "1ms", "--config"].map(OsStr::new);
    let out = [OsStr::new("--out"), out.as_os_str()];
    for args in [
        [
            &["engine", "driver"].map(OsStr::new)[..],
            &[good.as_os_str()],
        ]
        .concat(),
        [&check[..], &[config]].concat(),
        [&profile[..], &[config], &out].concat(),
    ] {
        let (status, text) = said(&Command::new(pointsman()).args(&args).output()?)?;
        assert_eq!(
            (status, text.matches(closed).count()),
            (0, 1),
            "{args:?}: {text}"
        );
    }
    let mut command = Command::new(pointsman());
    let hung = command
        .args(["engine", "driver", "--deadline-ms", "50"])
        .arg(&hangs);
    let output = hung.output()?;
    let (status, text) = said(&output)?;
    ensure!(
        status == 1 && text.contains("`close` did not come back"),
        "{status}: {text}"
    );
    ensure!(String::from_utf8_lossy(&output.stdout).contains("depth = 1"));
    Ok(())
}
