//! Recordings of decisions that a policy shall be tried on: `policy check --recording`.

use crate::{PageRow, Report, config, good_engine, run};
use anyhow::{Context, Result, ensure};
use pointsman_tests::Host;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

const TOKEN: &str = "a-token-for-operators-of-this-test";

/// How the file differs from a good one.
enum File {
    Missing,
    Folder,
    Is(&'static [u8]),
    /// all but the last bytes
    Cut(usize),
    /// without what comes after its first lines
    Lines(usize),
    /// this text of it is another
    Renamed(&'static str, &'static str),
    /// a line that is longer than any decision
    Long,
}

/// (what, file, exit status, text)
const TABLE: &[(&str, File, i32, &str)] = &[
    ("no file", File::Missing, 1, "No such file or directory"),
    ("a folder", File::Folder, 1, "cannot be read"),
    ("an empty file", File::Is(b""), 1, "this is not a recording"),
    (
        "something else",
        File::Is(b"{\"ts\": 1}\n{\"ts\": 2}\n"),
        1,
        "this is not a recording",
    ),
    (
        "bytes of no text",
        File::Is(b"\xff\xfe\x00\x01"),
        1,
        "this is not a recording",
    ),
    (
        "another version",
        File::Renamed("{\"pointsman_recording\":", "{\"pointsman_recording\":9"),
        1,
        "version",
    ),
    (
        "no decision in it",
        File::Lines(1),
        1,
        "there is no decision in it: wanted at least one",
    ),
    (
        "a line that is damaged",
        File::Renamed("\"seed\":", "\"seed\":\"x"),
        1,
        "line",
    ),
    (
        "its last line is half a one",
        File::Cut(20),
        0,
        "its last line is not whole, and was left out",
    ),
    ("a line beyond 64 MiB", File::Long, 1, "line 2"),
];

impl File {
    fn make(&self, good: &str, at: &Path) -> Result<()> {
        match self {
            File::Missing => {}
            File::Folder => std::fs::create_dir(at)?,
            File::Is(bytes) => std::fs::write(at, bytes)?,
            File::Cut(bytes) => std::fs::write(at, &good[..good.len() - bytes])?,
            File::Lines(lines) => {
                let lines: Vec<&str> = good.lines().take(*lines).collect();
                std::fs::write(at, lines.join("\n") + "\n")?;
            }
            File::Renamed(from, to) => {
                ensure!(good.contains(from), "no {from} in {good}");
                std::fs::write(at, good.replace(from, to))?;
            }
            File::Long => {
                let head = good.lines().next().context("no line")?;
                std::fs::write(at, format!("{head}\n{{\"{}", "x".repeat(65 << 20)))?;
            }
        }
        Ok(())
    }
}

#[tokio::test]
async fn a_recording_that_is_cut_damaged_foreign_or_huge_is_told() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let token = folder.path().join("token");
    std::fs::write(&token, TOKEN)?;
    std::fs::set_permissions(&token, std::fs::Permissions::from_mode(0o600))?;
    let engine = good_engine().await?;
    let admin = format!("token_file = {token:?}\n[policy]\nuse = \"least-tokens\"");
    let host = Host::start_config(&config(&engine.url, 2, &admin)).await?;
    for n in 0..3 {
        host.request(&format!("s{n}"), "hello").send().await?;
    }
    let good = reqwest::Client::new()
        .get(format!("{}/api/v1/recorder/recent", host.admin))
        .bearer_auth(TOKEN)
        .send()
        .await?
        .error_for_status()?
        .text()
        .await?;
    let mut report = Report::default();
    for ((what, file, status, text), n) in TABLE.iter().zip(0..) {
        let path = folder.path().join(format!("recording-{n}.jsonl"));
        file.make(&good, &path)?;
        let path = path.to_str().unwrap();
        let (found, said) = run(&["policy", "check", "least-tokens", "--recording", path]).await?;
        let fits = found == *status && said.contains(text);
        let start: String = said.chars().take(400).collect();
        report.row(
            what,
            fits.then_some(())
                .with_context(|| format!("{found}, no {text:?} in {start}")),
        );
    }
    report.close();
    Ok(())
}

/// For the page.
pub(crate) fn rows() -> Vec<PageRow> {
    (TABLE.iter())
        .map(|(what, _, status, text)| {
            [
                (*what).to_owned(),
                status.to_string(),
                format!("… {text} …"),
                String::new(),
            ]
        })
        .collect()
}
