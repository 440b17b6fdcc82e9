//! `pointsman engine profile`: a profiling window by hand, on the engines of a running host, or on those
//! of a configuration without one.

mod show;

use crate::commands::remote::{MaybeRemote, Remote, field, text};
use crate::commands::{print_json, serve, stop_signal};
use crate::config::{Config, Role};
use crate::engines::{Driven, LONGEST_MS};
use crate::profiling;
use anyhow::{Context, Result, bail, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use pointsman_engine::windows::{Collector, STOP_PATIENCE, Settings, State};
use reqwest::Method;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// For traces that are fetched and written, after the window's end.
const PATIENCE: Duration = Duration::from_secs(900);
/// Between two looks at a window that is being collected.
const LOOK: Duration = Duration::from_millis(200);

/// It waits for engines that long without a word.
const SILENCE: Duration = Duration::from_secs(1);

/// Arguments.
#[derive(clap::Args)]
pub struct Args {
    /// The configuration whose engines are profiled, while no host runs with it
    #[arg(long, value_name = "FILE", conflicts_with_all = ["admin", "token_file"])]
    config: Option<PathBuf>,
    #[command(flatten)]
    remote: MaybeRemote,
    /// The engines of this role; may be repeated. Without it: all that have a driver
    #[arg(long = "role", value_enum, value_name = "ROLE")]
    roles: Vec<Role>,
    /// How long the window is open; Ctrl-C ends it sooner
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = humantime::parse_duration)]
    duration: Duration,
    /// Where the traces go, a folder for each window. With --admin: the host keeps them, and they are
    /// also copied here
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// Opens a window, waits for its end, and shows what it left. Exit status 1 if any engine failed.
pub fn run(args: &Args, as_json: bool) -> Result<ExitCode> {
    let longest = Duration::from_millis(LONGEST_MS);
    ensure!(
        args.duration >= Duration::from_millis(1) && args.duration <= longest,
        "--duration {:?}: wanted 1ms to {longest:?}",
        args.duration
    );
    if let Some(out) = &args.out {
        writable(out)?;
    }
    let mut copied = Ok(());
    let index = match (&args.config, args.remote.named()) {
        (Some(config), None) => by_hand(args, config)?,
        (None, Some(remote)) => {
            let (index, copy) = by_host(args, &remote)?;
            copied = copy;
            index
        }
        _ => bail!(
            "whose engines? wanted --admin URL --token-file FILE of a running host, or --config FILE"
        ),
    };
    if as_json {
        print_json(&index)?;
    } else {
        show::show(&index);
    }
    if let Err(error) = &copied {
        let kept = text(&index, "folder");
        eprintln!("pointsman: not copied, the host has it in {kept}: {error:#}");
    }
    Ok(if copied.is_ok() && show::is_whole(&index) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Makes the folder. Better known before a window is opened than after.
fn writable(folder: &Path) -> Result<()> {
    let made = std::fs::create_dir_all(folder).and_then(|()| tempfile::tempfile_in(folder));
    made.map(drop)
        .with_context(|| format!("cannot write to {}", folder.display()))
}

/// Asks the host, which collects. Also says whether the copy succeeded, if one was wanted.
fn by_host(args: &Args, remote: &Remote) -> Result<(Value, Result<()>)> {
    let roles: Option<&Vec<Role>> = Some(&args.roles).filter(|roles| !roles.is_empty());
    let millis = u64::try_from(args.duration.as_millis()).unwrap_or(LONGEST_MS);
    let wanted = json!({ "roles": roles, "duration_ms": millis });
    let started = remote.ask(Method::POST, "profile/start", |r| r.json(&wanted))?;
    let started = started.wanted()?;
    let engines = field(&started, "engines").as_array();
    let opened = engines.into_iter().flatten();
    let opened = opened.filter(|engine| *field(engine, "open") == Value::Bool(true));
    let opened: Vec<String> = opened.map(|one| text(one, "engine").to_owned()).collect();
    let window = text(&started, "window");
    if pause(args.duration, true)? {
        say_ending(&opened);
        let wanted = json!({ "window": window });
        remote.ask(Method::POST, "profile/stop", |r| r.json(&wanted))?;
    }
    let path = format!("profile/windows/{window}");
    let index = until_done(&opened, || remote.ask(Method::GET, &path, |r| r)?.wanted())?;
    let copied = match &args.out {
        Some(out) => copy(remote, &path, &index, &out.join(window)),
        None => Ok(()),
    };
    if field(&index, "folder").is_null() && field(&index, "error").is_null() {
        eprintln!("the host keeps no traces: set [profile] folder there, and start it anew");
    }
    Ok((index, copied))
}

/// All files of a window; a folder of its name is whole.
fn copy(remote: &Remote, path: &str, index: &Value, to: &Path) -> Result<()> {
    let names = show::files(index);
    if names.is_empty() && field(index, "folder").is_null() {
        return Ok(());
    }
    let mut partial = to.as_os_str().to_owned();
    partial.push(".partial");
    let partial = PathBuf::from(partial);
    std::fs::create_dir(&partial).with_context(|| format!("cannot make {}", partial.display()))?;
    let bar = ProgressBar::new(names.len() as u64 + 1).with_message("copying");
    for name in names.iter().map(String::as_str).chain(["index.json"]) {
        let plain = !name.is_empty() && !name.starts_with('.') && !name.contains('/');
        ensure!(
            plain,
            "the host names a file {name:?}, which is none of a window's"
        );
        remote
            .download(&format!("{path}/{name}"), &partial.join(name))
            .with_context(|| format!("{name} is not copied"))?;
        bar.inc(1);
    }
    bar.finish_and_clear();
    std::fs::rename(&partial, to)
        .with_context(|| format!("cannot rename {} to {}", partial.display(), to.display()))?;
    eprintln!("copied to {}", to.display());
    Ok(())
}

/// Opens the drivers in this process, which collects.
fn by_hand(args: &Args, file: &Path) -> Result<Value> {
    let config = Config::read(file)?;
    let folder = (args.out.clone()).or_else(|| profiling::folder(&config));
    let folder = folder.context("where to? wanted --out DIR, or [profile] folder in the file")?;
    writable(&folder)?;
    let driven = Arc::new(Driven::start(&config, serve::core(&config))?);
    let settings = Settings {
        folder: Some(folder),
        // What lies there is not this command's to remove.
        keep: usize::MAX,
    };
    let collector = profiling::collector(settings, &driven)?;
    let index = collected(args, &collector);
    serve::close(&driven);
    index
}

fn collected(args: &Args, collector: &Collector) -> Result<Value> {
    let choose = |role: &str| args.roles.is_empty() || args.roles.iter().any(|r| r.name() == role);
    let opened = collector.open("pointsman engine profile", choose, Some(args.duration));
    if opened.engines.is_empty() {
        bail!(
            "no engine of these roles has a driver: give its [[pool]] one, such as driver = {{ kind = \
             \"vllm\" }}"
        );
    }
    if opened.engines.iter().all(|(.., said)| said.is_err()) {
        let errors = opened
            .engines
            .iter()
            .filter_map(|(engine, _, said)| Some(format!("{engine}: {}", said.as_ref().err()?)));
        bail!(
            "no window was opened: {}",
            errors.collect::<Vec<_>>().join("; ")
        );
    }
    let awaited = opened.engines.iter().filter(|(.., said)| said.is_ok());
    let awaited: Vec<String> = awaited.map(|(engine, ..)| engine.clone()).collect();
    if pause(args.duration, true)? {
        say_ending(&awaited);
        collector.stop(choose);
    }
    let index = until_done(&awaited, || {
        let index = collector.wait(&opened.window, LOOK);
        let index = index.context("the window is gone")?;
        Ok(serde_json::to_value(&index)?)
    })?;
    Ok(index)
}

fn say_ending(engines: &[String]) {
    let most = STOP_PATIENCE;
    eprintln!(
        "ending the window on {}: an engine has {most:?} to answer",
        engines.join(", ")
    );
}

/// Looks until the window is done, and says which of these engines it waits for. A second Ctrl-C gives up.
fn until_done(engines: &[String], look: impl Fn() -> Result<Value>) -> Result<Value> {
    let begun = Instant::now();
    let mut said = Vec::new();
    let done = serde_json::to_value(State::Done)?;
    loop {
        let index = look()?;
        if *field(&index, "state") == done {
            return Ok(index);
        }
        let waits = begun.elapsed();
        let missing = missing(engines, &index);
        if waits > SILENCE && !missing.is_empty() && missing != said {
            let (names, stop, most) = (missing.join(", "), STOP_PATIENCE, PATIENCE);
            eprintln!(
                "waiting for {names}: {stop:?} at most for the end of the window, and {most:?} for \
                 its traces; Ctrl-C gives up"
            );
            said = missing;
        }
        if waits > PATIENCE + STOP_PATIENCE {
            bail!("the traces of {} are not there yet", text(&index, "window"));
        }
        if pause(LOOK, false)? {
            bail!(
                "given up; what of {} was written stays",
                text(&index, "window")
            );
        }
    }
}

/// Those of the engines whose part is not there.
fn missing(engines: &[String], index: &Value) -> Vec<String> {
    let parts = field(index, "engines").as_array();
    let there: Vec<&str> = (parts.into_iter().flatten())
        .map(|part| text(part, "engine"))
        .collect();
    let missing = engines
        .iter()
        .filter(|name| !there.contains(&name.as_str()));
    missing.cloned().collect()
}

/// Waits; true: it was told to stop. `is_recording`: that is what it waits for, and says.
fn pause(duration: Duration, is_recording: bool) -> Result<bool> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("no runtime")?;
    let bar = ProgressBar::new(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX));
    if let Ok(style) = ProgressStyle::with_template("{msg} {bar:40} {elapsed}") {
        bar.set_style(style);
    }
    bar.set_message(if is_recording {
        "recording"
    } else {
        "collecting"
    });
    let stopped = runtime.block_on(async {
        let end = tokio::time::sleep(duration);
        tokio::pin!(end);
        let stop = stop_signal();
        tokio::pin!(stop);
        let begun = Instant::now();
        let mut tick = tokio::time::interval(Duration::from_millis(50));
        let mut announced = !is_recording;
        loop {
            tokio::select! {
                biased;
                () = &mut end => return false,
                () = &mut stop => return true,
                _ = tick.tick() => {
                    // Signals are heard from the line above on.
                    if !std::mem::replace(&mut announced, true) {
                        eprintln!("recording for {duration:?}: Ctrl-C ends it sooner");
                    }
                    bar.set_position(u64::try_from(begun.elapsed().as_millis()).unwrap_or(0));
                }
            }
        }
    });
    bar.finish_and_clear();
    Ok(stopped)
}
