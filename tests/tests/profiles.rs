//! Profiling windows from end to end: opened by an operator, by hand, and by a policy; collected.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test's helper fails the test"
)]

use anyhow::{Context, Result, ensure};
use pointsman_tests::{Engine, Host, driver_in_c, guest, pointsman, root};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

const TOKEN: &str = "a-token-for-operators-of-this-test";
/// Much longer than anything here takes; only ends a test that has failed.
const AT_LAST: Duration = Duration::from_secs(60);

/// A host's folder: its token, its traces, a driver in C.
struct Place(TempDir);

impl Place {
    fn new() -> Result<Place> {
        let folder = tempfile::tempdir()?;
        let token = folder.path().join("token");
        std::fs::write(&token, TOKEN)?;
        std::fs::set_permissions(&token, std::fs::Permissions::from_mode(0o600))?;
        let source = root().join("examples/engine-driver-c/driver.c");
        driver_in_c(&source, &[], &folder.path().join("driver.so"))?;
        Ok(Place(folder))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// The index of a window, as soon as it lies in the folder.
    async fn index(&self, window: &str) -> Result<Value> {
        let index = self.path("profiles").join(window).join("index.json");
        let looks = async {
            let mut look = tokio::time::interval(Duration::from_millis(5));
            while !index.exists() {
                look.tick().await;
            }
        };
        tokio::time::timeout(AT_LAST, looks).await?;
        json_of(&index)
    }

    /// `pools` with what all tests want before them.
    fn config(&self, more: &str, pools: &str) -> String {
        format!(
            "[listen]\naddress = \"127.0.0.1:0\"\nthreads = 1\n\
             [admin]\naddress = \"127.0.0.1:0\"\ntoken_file = {:?}\n\
             [profile]\nfolder = {:?}\nkeep = 2\n{more}\n{pools}",
            self.path("token"),
            self.path("profiles")
        )
    }

    /// Engines `a` of 2 ranks and `b` of one, both behind the driver in C, and `c`, which has none to say.
    fn in_c(&self) -> String {
        let driver = self.path("driver.so");
        let pool = |role: &str, name: &str, ranks: u32| {
            format!(
                "[[pool]]\nname = {role:?}\nrole = {role:?}\ndialect = \"vllm\"\n\
                 endpoints = [{{ name = {name:?}, url = \"http://127.0.0.1:9\", ranks = {ranks} }}]\n\
                 driver = {{ kind = \"library\", library = {driver:?}, config = {{ ranks = {ranks} }} }}\n"
            )
        };
        let mut pools = pool("serve", "a", 2) + &pool("prefill", "b", 1);
        pools += "[[pool]]\nname = \"null\"\nrole = \"decode\"\ndriver = { kind = \"null\" }\n\
                  endpoints = [{ name = \"c\", url = \"http://127.0.0.1:9\" }]\n";
        pools
    }

    /// Starts the command.
    fn begin(&self, args: &[&str]) -> Result<Child> {
        let mut command = Command::new(pointsman());
        command.args(["engine", "profile"]).args(args);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.current_dir(self.0.path()).kill_on_drop(true);
        Ok(child.spawn()?)
    }

    /// With a fault, in the place of the driver in C.
    fn faulty(&self, fault: &str, file: &str) -> Result<()> {
        let source = root().join("host/engine/tests/drivers/faulty.c");
        driver_in_c(&source, &[format!("-DFAULT_{fault}")], &self.path(file))
    }

    /// Runs the command to its end: exit status, standard output, standard error.
    async fn profile(&self, args: &[&str]) -> Result<(i32, String, String)> {
        let run = Command::new(pointsman())
            .args(["engine", "profile"])
            .args(args)
            .current_dir(self.0.path())
            .kill_on_drop(true)
            .output();
        let output = tokio::time::timeout(AT_LAST, run).await??;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (said, errors) = (text(&output.stdout), text(&output.stderr));
        Ok((output.status.code().unwrap_or(-1), said, errors))
    }
}

/// The first line on its standard error that has this text.
async fn says(child: &mut Child, text: &str) -> Result<String> {
    let errors = child.stderr.as_mut().context("no output")?;
    let mut lines = BufReader::new(errors).lines();
    let found = async {
        while let Some(line) = lines.next_line().await? {
            if line.contains(text) {
                return Ok(line);
            }
        }
        anyhow::bail!("it ended, and never said {text:?}")
    };
    tokio::time::timeout(AT_LAST, found).await?
}

/// Ctrl-C, as soon as its window is open.
async fn interrupt(child: &mut Child) -> Result<()> {
    says(child, "Ctrl-C ends it").await?;
    let id = child.id().context("it has ended")?.to_string();
    let sent = Command::new("kill").args(["-s", "INT", &id]).status();
    let sent = sent.await?;
    ensure!(sent.success(), "kill: {sent}");
    Ok(())
}

async fn ask(host: &Host, post: Option<Value>, path: &str) -> Result<(u16, String)> {
    let url = format!("{}/api/v1/profile{path}", host.admin);
    let client = reqwest::Client::new();
    let request = match post {
        Some(body) => client.post(url).json(&body),
        None => client.get(url),
    };
    let answer = request.bearer_auth(TOKEN).send().await?;
    Ok((answer.status().as_u16(), answer.text().await?))
}

/// A window's index, when it is done.
async fn done(host: &Host, window: &str) -> Result<Value> {
    let looks = async {
        let mut look = tokio::time::interval(Duration::from_millis(5));
        loop {
            look.tick().await;
            let (status, index) = ask(host, None, &format!("/windows/{window}")).await?;
            ensure!(status == 200, "{index}");
            let index: Value = serde_json::from_str(&index)?;
            if index["state"] == "done" {
                return Ok(index);
            }
        }
    };
    tokio::time::timeout(AT_LAST, looks)
        .await
        .context("it is never done")?
}

fn json_of(path: &Path) -> Result<Value> {
    let text = std::fs::read(path).with_context(|| path.display().to_string())?;
    Ok(serde_json::from_slice(&text)?)
}

/// The processes that a merged trace shows, and each one's events.
fn processes(merged: &Value) -> Vec<(String, usize)> {
    let events = merged["traceEvents"].as_array().unwrap();
    (events.iter())
        .filter(|event| event["name"] == "process_name")
        .map(|name| {
            let of = |event: &&Value| event["pid"] == name["pid"] && event["ph"] != "M";
            let name = name["args"]["name"].as_str().unwrap().to_owned();
            (name, events.iter().filter(of).count())
        })
        .collect()
}

#[tokio::test]
async fn by_hand_without_a_host_every_ranks_trace_is_collected_into_a_folder() -> Result<()> {
    let place = Place::new()?;
    std::fs::write(place.path("p.toml"), place.config("", &place.in_c()))?;
    let args = ["--config", "p.toml", "--duration", "20ms", "--out", "out"];
    let (status, said, errors) = place.profile(&args).await?;
    ensure!(status == 0, "{said}{errors}");
    for line in [
        "| a      | serve   |     2 |      4 |",
        "| c      | decode  |     0 |      0 |     0 | -",
        "merged.trace.json (6 events, for ui.perfetto.dev)",
    ] {
        ensure!(said.contains(line), "no {line:?} in {said}");
    }
    let windows: Vec<_> = std::fs::read_dir(place.path("out"))?.collect();
    let folder = windows[0].as_ref().unwrap().path();
    let index = json_of(&folder.join("index.json"))?;
    assert_eq!(index["opened_by"], "pointsman engine profile");
    assert_eq!(index["roles"], json!(["decode", "prefill", "serve"]));
    let merged = json_of(&folder.join("merged.trace.json"))?;
    let wanted = [("a/0", 2), ("a/1", 2), ("b/0", 2)].map(|(name, n)| (name.to_owned(), n));
    assert_eq!(processes(&merged), wanted);

    let some = ["--role", "prefill", "--role", "decode", "--json"];
    let (status, said, _) = place.profile(&[&args[..], &some[..]].concat()).await?;
    let index: Value = serde_json::from_str(&said)?;
    let engines = index["engines"].as_array().context("engines")?;
    assert_eq!((status, engines.len()), (0, 2), "{said}");
    // One that fails, and the others' traces are there all the same.
    let text = std::fs::read_to_string(place.path("p.toml"))?;
    std::fs::write(
        place.path("p.toml"),
        text.replace("kind = \"null\"", "kind = \"vllm\""),
    )?;
    let (status, said, errors) = place.profile(&args).await?;
    assert_eq!(status, 1);
    ensure!(said.contains("a-rank-1.trace.json"), "{said}");
    ensure!(
        errors.contains("pointsman: c: it was not opened"),
        "{errors}"
    );
    Ok(())
}

#[tokio::test]
async fn a_host_collects_names_and_hands_out_what_windows_leave() -> Result<()> {
    let place = Place::new()?;
    let host = Host::start_config(&place.config("", &place.in_c())).await?;
    let (token, admin) = (place.path("token"), host.admin.clone());
    let remote = ["--admin", &admin, "--token-file", token.to_str().unwrap()];
    let more = ["--duration", "20ms", "--out", "copy"];
    let (status, said, errors) = place.profile(&[&remote[..], &more[..]].concat()).await?;
    ensure!(status == 0, "{said}{errors}");
    let (_, now) = ask(&host, None, "").await?;
    let now: Value = serde_json::from_str(&now)?;
    assert_eq!(now["folder"], json!(place.path("profiles")));
    let index = &now["windows"][0];
    let window = index["window"].as_str().context("no window")?;
    ensure!(
        index["opened_by"]
            .as_str()
            .is_some_and(|by| by.starts_with("operator 127.0.0.1:"))
    );
    // What the host keeps, what was copied, and what it hands out are the same.
    for file in [
        "index.json",
        "merged.trace.json",
        "a-rank-1.trace.json",
        "b-rank-0.trace.json",
    ] {
        let kept = std::fs::read_to_string(place.path("profiles").join(window).join(file))?;
        let copied = std::fs::read_to_string(place.path("copy").join(window).join(file))?;
        let (status, sent) = ask(&host, None, &format!("/windows/{window}/{file}")).await?;
        assert_eq!((status, &sent, &copied), (200, &kept, &kept), "{file}");
    }
    assert_eq!(
        json_of(&place.path("profiles").join(window).join("index.json"))?,
        *index
    );
    std::fs::write(place.path("profiles/secret"), "x")?;
    for path in [
        format!("/windows/{window}/..%2F..%2Ftoken"),
        format!("/windows/{window}/%2E%2E"),
        "/windows/%2E%2E/token".to_owned(),
        "/windows/..%2F/token".to_owned(),
        format!("/windows/{window}%2F..%2F/secret"),
        format!("/windows/{window}/none.json"),
        "/windows/20200101T000000Z-0001".to_owned(),
        "/windows/20200101T000000Z-0001/index.json".to_owned(),
    ] {
        let (status, said) = ask(&host, None, &path).await?;
        ensure!(
            status == 404 && !said.contains(TOKEN),
            "{path}: {status} {said}"
        );
    }
    let url = format!("{admin}/api/v1/profile/windows/{window}/index.json");
    assert_eq!(reqwest::get(url).await?.status(), 401, "without the token");

    // Two more: the first one goes, and a start anew knows those that are left.
    let mut names = vec![window.to_owned()];
    for _ in 0..2 {
        let wanted = json!({ "duration_ms": 5, "roles": ["serve"] });
        let (_, started) = ask(&host, Some(wanted), "/start").await?;
        let started: Value = serde_json::from_str(&started)?;
        let window = started["window"].as_str().context("no window")?.to_owned();
        done(&host, &window).await?;
        names.push(window);
    }
    drop(host);
    let host = Host::start_config(&place.config("", &place.in_c())).await?;
    let (_, now) = ask(&host, None, "").await?;
    let now: Value = serde_json::from_str(&now)?;
    assert_eq!(now["windows"][0]["window"], names[2].as_str(), "{now}");
    ensure!(
        now["windows"].as_array().is_some_and(|all| all.len() <= 3),
        "{now}"
    );
    Ok(())
}

#[tokio::test]
async fn ctrl_c_ends_a_window_and_what_it_left_is_collected() -> Result<()> {
    let place = Place::new()?;
    std::fs::write(place.path("p.toml"), place.config("", &place.in_c()))?;
    let host = Host::start_config(&place.config("", &place.in_c())).await?;
    let token = place.path("token");
    let by_host = [
        "--admin",
        &host.admin,
        "--token-file",
        token.to_str().unwrap(),
    ];
    for how in [&["--config", "p.toml", "--out", "out"][..], &by_host[..]] {
        let mut child = place.begin(&[&["--json", "--duration", "1h"], how].concat())?;
        interrupt(&mut child).await?;
        let output = tokio::time::timeout(AT_LAST, child.wait_with_output()).await??;
        let index: Value = serde_json::from_slice(&output.stdout)?;
        assert_eq!(output.status.code(), Some(0), "{index}");
        assert_eq!(index["merged"]["events"], 6, "{index}");
        let lasted = index["duration_ms"].as_u64().context("no duration")?;
        ensure!(lasted < 3_600_000, "{lasted}");
    }
    Ok(())
}

#[tokio::test]
async fn windows_that_a_policy_opens_are_collected_under_its_name() -> Result<()> {
    let place = Place::new()?;
    let policy = format!(
        "[policy]\nuse = {:?}\nconfig = {{ tick = \"windows\" }}\n\
         [[grant]]\npolicy = \"driving-guest\"\nengines = [\"a\", \"b\"]",
        guest("driving-guest")
    );
    let host = Host::start_config(&place.config(&policy, &place.in_c())).await?;
    let looks = async {
        let mut look = tokio::time::interval(Duration::from_millis(5));
        loop {
            look.tick().await;
            let (_, now) = ask(&host, None, "").await?;
            let now: Value = serde_json::from_str(&now)?;
            let windows = now["windows"].as_array().cloned().unwrap_or_default();
            if let Some(done) = windows.iter().find(|window| window["state"] == "done") {
                return anyhow::Ok(done.clone());
            }
        }
    };
    let index = tokio::time::timeout(AT_LAST, looks).await??;
    assert_eq!(index["opened_by"], "policy driving-guest");
    let engines = index["engines"].as_array().context("engines")?;
    ensure!(
        !engines.is_empty() && index["merged"]["events"].as_u64() > Some(0),
        "{index}"
    );
    ensure!(
        engines.iter().all(|engine| engine["engine"] != "c"),
        "{index}"
    );
    Ok(())
}

#[tokio::test]
async fn a_folder_that_is_full_is_said_and_no_window_stays_open() -> Result<()> {
    let place = Place::new()?;
    let host = Host::start_config(&place.config("", &place.in_c())).await?;
    // Not a folder any more: also root could write to one that is merely read-only.
    std::fs::write(place.path("profiles"), "in the way")?;
    let wanted = json!({ "duration_ms": 5 });
    let (_, started) = ask(&host, Some(wanted), "/start").await?;
    let started: Value = serde_json::from_str(&started)?;
    let index = done(&host, started["window"].as_str().context("no window")?).await?;
    let error = index["error"].as_str().context("no error")?;
    ensure!(
        error.contains("cannot write") && error.contains("profiles"),
        "{error}"
    );
    let (_, now) = ask(&host, None, "").await?;
    let now: Value = serde_json::from_str(&now)?;
    ensure!(
        now["engines"]
            .as_array()
            .context("engines")?
            .iter()
            .all(|e| e["open"] == false)
    );
    Ok(())
}

#[tokio::test]
async fn one_window_is_stopped_and_another_operators_goes_on() -> Result<()> {
    let place = Place::new()?;
    let host = Host::start_config(&place.config("", &place.in_c())).await?;
    let start = async |role: &str| {
        let (_, started) = ask(&host, Some(json!({ "roles": [role] })), "/start").await?;
        let started: Value = serde_json::from_str(&started)?;
        let window = started["window"].as_str().context("no window")?;
        anyhow::Ok(window.to_owned())
    };
    let (first, second) = (start("serve").await?, start("prefill").await?);
    let (status, said) = ask(&host, Some(json!({ "window": first })), "/stop").await?;
    ensure!(status == 200 && said.contains("duration_us"), "{said}");
    done(&host, &first).await?;
    let (_, open) = ask(&host, None, &format!("/windows/{second}")).await?;
    let open: Value = serde_json::from_str(&open)?;
    assert_eq!(open["state"], "open");
    for gone in [&first, "none"] {
        let (status, said) = ask(&host, Some(json!({ "window": gone })), "/stop").await?;
        assert_eq!((status, said.as_str()), (200, "{\"engines\":[]}"));
    }
    let (status, _) = ask(&host, Some(json!({ "window": first })), "/start").await?;
    assert_eq!(status, 400);
    Ok(())
}

#[tokio::test]
async fn a_host_that_is_told_to_end_ends_its_windows_and_keeps_what_they_left() -> Result<()> {
    let place = Place::new()?;
    let host = Host::start_config(&place.config("", &place.in_c())).await?;
    let (_, started) = ask(&host, Some(json!({})), "/start").await?;
    let started: Value = serde_json::from_str(&started)?;
    let window = started["window"].as_str().context("no window")?;
    host.process.signal("TERM").await?;
    let index = place.index(window).await?;
    assert_eq!(index["merged"]["events"], 6, "{index}");
    Ok(())
}

#[tokio::test]
async fn a_host_that_ends_closes_its_drivers() -> Result<()> {
    let place = Place::new()?;
    place.faulty("SAYS_CLOSED", "driver.so")?;
    let log = place.path("log");
    let stderr = std::fs::File::create(&log)?;
    let change = |command: &mut Command| {
        command.stderr(stderr);
    };
    let host = Host::start_changed(&place.config("", &place.in_c()), change).await?;
    // Two are opened by that.
    ask(&host, Some(json!({ "duration_ms": 1 })), "/start").await?;
    host.process.signal("TERM").await?;
    let closed = async {
        let mut look = tokio::time::interval(Duration::from_millis(5));
        while std::fs::read_to_string(&log)?
            .matches("the driver is closed")
            .count()
            < 2
        {
            look.tick().await;
        }
        anyhow::Ok(())
    };
    tokio::time::timeout(AT_LAST, closed).await?
}

#[tokio::test]
async fn a_host_that_ends_while_an_engine_hangs_keeps_what_the_others_left() -> Result<()> {
    let place = Place::new()?;
    place.faulty("HANG_IN_STOP", "hangs.so")?;
    let hangs = format!(
        "[[pool]]\nname = \"hangs\"\nrole = \"decode\"\n\
         endpoints = [{{ name = \"d\", url = \"http://127.0.0.1:9\" }}]\n\
         driver = {{ kind = \"library\", library = {:?} }}\n",
        place.path("hangs.so")
    );
    let pools = place.in_c() + &hangs;
    let host = Host::start_config(&place.config("", &pools)).await?;
    let (_, started) = ask(&host, Some(json!({})), "/start").await?;
    let started: Value = serde_json::from_str(&started)?;
    let window = started["window"].as_str().context("no window")?;
    host.process.signal("TERM").await?;
    let index = place.index(window).await?;
    assert_eq!(index["merged"]["events"], 6, "{index}");
    let d = &index["engines"][3];
    let error = d["error"].as_str().context("no error")?;
    ensure!(
        d["engine"] == "d" && error.starts_with("it did not answer before the host ended"),
        "{d}"
    );
    Ok(())
}

#[tokio::test]
async fn an_engine_that_is_waited_for_is_named_with_how_long_that_is_at_most() -> Result<()> {
    let place = Place::new()?;
    place.faulty("HANG_IN_STOP", "driver.so")?;
    std::fs::write(place.path("p.toml"), place.config("", &place.in_c()))?;
    let args = ["--config", "p.toml", "--duration", "1ms", "--out", "out"];
    let mut child = place.begin(&args)?;
    let line = says(&mut child, "waiting for").await?;
    ensure!(line.contains("waiting for a, b: 120s at most"), "{line}");
    Ok(())
}

#[tokio::test]
async fn where_the_traces_go_is_tried_first_and_a_copy_that_fails_loses_nothing() -> Result<()> {
    let place = Place::new()?;
    let host = Host::start_config(&place.config("", &place.in_c())).await?;
    std::fs::write(place.path("p.toml"), place.config("", &place.in_c()))?;
    let token = place.path("token");
    let token = token.to_str().context("a path")?;
    let by_host = ["--admin", &host.admin, "--token-file", token];
    std::fs::write(place.path("file"), "in the way")?;
    for how in [&by_host[..], &["--config", "p.toml"]] {
        let args = [how, &["--duration", "1h", "--out", "file/below"]].concat();
        let (status, _, errors) = place.profile(&args).await?;
        ensure!(
            status == 1 && errors.contains("cannot write to file/below"),
            "{errors}"
        );
    }
    let (_, now) = ask(&host, None, "").await?;
    ensure!(now.contains("\"windows\":[]"), "none was opened: {now}");

    let args = [&by_host[..], &["--duration", "1h", "--out", "gone"]].concat();
    let mut child = place.begin(&args)?;
    says(&mut child, "Ctrl-C ends it").await?;
    // Opened already; its folder is another one now.
    std::fs::remove_dir(place.path("gone"))?;
    std::fs::write(place.path("gone"), "in the way")?;
    let (status, stopped) = ask(&host, Some(json!({})), "/stop").await?;
    ensure!(status == 200, "{stopped}");
    let id = child.id().context("it has ended")?.to_string();
    let sent = Command::new("kill").args(["-s", "INT", &id]).status();
    ensure!(sent.await?.success());
    let why = says(&mut child, "not copied").await?;
    let kept = place.path("profiles");
    ensure!(
        why.contains(&format!("the host has it in {}/", kept.display())),
        "{why}"
    );
    let output = tokio::time::timeout(AT_LAST, child.wait_with_output()).await??;
    let said = String::from_utf8(output.stdout)?;
    assert_eq!(output.status.code(), Some(1), "{said}");
    ensure!(said.contains("merged.trace.json (6 events"), "{said}");
    Ok(())
}

#[tokio::test]
async fn a_window_that_no_engine_opens_is_refused_with_their_reasons() -> Result<()> {
    let place = Place::new()?;
    let host = Host::start_config(&place.config("", &place.in_c())).await?;
    let (status, first) = ask(&host, Some(json!({ "roles": ["serve"] })), "/start").await?;
    ensure!(status == 200, "{first}");
    let (status, said) = ask(&host, Some(json!({ "roles": ["serve"] })), "/start").await?;
    let said: Value = serde_json::from_str(&said)?;
    let cause = said["error"]["cause"].as_str().context("no cause")?;
    ensure!(
        status == 409
            && cause
                .starts_with("no window was opened: a: a window is open already by operator 127"),
        "{status} {cause}"
    );
    // Of two, one opens it.
    let (status, both) = ask(&host, Some(json!({})), "/start").await?;
    let both: Value = serde_json::from_str(&both)?;
    ensure!(status == 200 && both["window"].is_string(), "{both}");
    Ok(())
}

#[tokio::test]
async fn check_warns_of_an_engine_that_has_more_ranks_than_the_file() -> Result<()> {
    let place = Place::new()?;
    let text = place
        .config("", &place.in_c())
        .replace("ranks = 2 }]", "ranks = 1 }]");
    std::fs::write(place.path("p.toml"), text)?;
    let mut check = Command::new(pointsman());
    check
        .args(["check", "--engines", "--config"])
        .arg(place.path("p.toml"));
    let output = tokio::time::timeout(AT_LAST, check.output()).await??;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success()
            && said.contains("engine \"a\": ranks = 1 in the configuration, the engine has 2"),
        "{said}"
    );
    Ok(())
}

/// Against the engine itself: what its ranks did is in the picture.
#[tokio::test]
async fn reference_engines_of_both_roles_leave_one_picture_of_all_their_ranks() -> Result<()> {
    let place = Place::new()?;
    let (a, p) = (Engine::start("a", 2).await?, Engine::start("p", 1).await?);
    let mut pools = String::new();
    for (engine, role) in [(&a, "serve"), (&p, "prefill")] {
        writeln!(
            pools,
            "[[pool]]\nname = {role:?}\nrole = {role:?}\ndialect = \"vllm\"\n\
             endpoints = [{{ name = {:?}, url = {:?}, ranks = {} }}]\n\
             driver = {{ kind = \"reference\" }}",
            engine.name, engine.url, engine.ranks
        )?;
    }
    // First turns in turn: every rank has something to do.
    let policy = "[policy]\nuse = \"conversation-round-robin\"";
    let host = Host::start_config(&place.config(policy, &pools)).await?;
    let (_, started) = ask(&host, Some(json!({})), "/start").await?;
    let started: Value = serde_json::from_str(&started)?;
    // Among equals the session's hash decides: enough of them for both ranks.
    for n in 0..24 {
        assert_eq!(
            host.chat(&format!("s{n}"), "hello there").await?.status,
            200
        );
    }
    ask(&host, Some(json!({})), "/stop").await?;
    let index = done(&host, started["window"].as_str().context("no window")?).await?;
    assert_eq!(index["error"], Value::Null, "{index}");
    let folder = PathBuf::from(index["folder"].as_str().context("no folder")?);
    let merged = json_of(&folder.join("merged.trace.json"))?;
    let found = processes(&merged);
    let names: Vec<&str> = found.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["a/0", "a/1", "p/0"]);
    ensure!(found[0].1 > 0 && found[1].1 > 0, "{found:?}");
    // The index says of each rank what the engine counted.
    let traces = index["engines"][0]["traces"].as_array().context("traces")?;
    let said = index["engines"][0]["said"]["traces"]
        .as_array()
        .context("said")?;
    for (trace, said) in traces.iter().zip(said) {
        assert_eq!(trace["rank"], said["rank"], "{index}");
        assert_eq!(trace["events"], said["events"], "{index}");
        assert_eq!(said["dropped"], 0, "{index}");
    }
    Ok(())
}
