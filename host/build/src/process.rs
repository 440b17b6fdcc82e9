//! A program that is run for its answer, within a time.

use std::io::{self, Read};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// Runs it and gives its last words if it fails; its output goes nowhere else.
pub(crate) fn run(command: &mut Command, limit: Duration) -> Result<(), String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| not_run(&name, &error))?;
    let words = child.stderr.take();
    let (sender, ended) = mpsc::channel();
    thread::spawn(move || {
        let mut text = Vec::new();
        if let Some(mut words) = words {
            // What was read before an error is still worth showing.
            let _ = words.read_to_end(&mut text);
        }
        let _ = sender.send(String::from_utf8_lossy(&text).into_owned());
    });
    let Ok(text) = ended.recv_timeout(limit) else {
        let _ = child.kill();
        let _ = child.wait();
        return Err(format!("{name} took longer than {} s", limit.as_secs()));
    };
    match child.wait() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{name} failed ({status}): {}", last_line(&text))),
        Err(error) => Err(not_run(&name, &error)),
    }
}

/// What a program prints; none: it is not there, or failed.
pub(crate) fn output(command: &mut Command) -> Option<String> {
    let output = command.stdin(Stdio::null()).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}

fn not_run(name: &str, error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => format!("there is no {name} here"),
        _ => format!("{name} could not be run: {error}"),
    }
}

fn last_line(text: &str) -> &str {
    let mut lines = text.lines().map(str::trim);
    lines
        .rfind(|line| !line.is_empty())
        .unwrap_or("it said nothing")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn a_program_that_takes_too_long_is_ended() {
        let error = run(&mut shell("exec sleep 60"), Duration::from_millis(50)).unwrap_err();
        assert!(error.contains("took longer"), "{error}");
    }

    #[test]
    fn a_program_that_fails_gives_its_last_words() {
        let error = run(
            &mut shell("echo one >&2; echo two >&2; exit 3"),
            Duration::from_secs(9),
        );
        assert!(error.unwrap_err().ends_with("two"));
    }

    #[test]
    fn a_program_that_is_not_there_is_named() {
        let error = run(&mut Command::new("no-such-program"), Duration::from_secs(9));
        assert_eq!(error.unwrap_err(), "there is no no-such-program here");
    }
}
