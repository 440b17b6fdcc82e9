//! The wasmtime engine that all policies of a process share, and the clock of their deadlines.

use crate::bindings::Router;
use crate::cache::CodeCache;
use crate::host::State;
use std::thread;
use std::time::Duration;
use thiserror::Error;
use wasmtime::component::{HasSelf, Linker};
use wasmtime::{Config, EngineWeak};

/// The length of an epoch: deadlines are counted in these.
pub(crate) const TICK_MS: u64 = 1;

/// The engine could not be made: the machine lacks what wasmtime needs.
#[derive(Debug, Error)]
#[error("the WebAssembly engine cannot start here: {0}")]
pub struct EngineError(String);

/// See the module.
pub struct Engine {
    pub(crate) wasm: wasmtime::Engine,
    pub(crate) linker: Linker<State>,
    pub(crate) cache: Option<CodeCache>,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").finish_non_exhaustive()
    }
}

impl Engine {
    /// Starts an engine and the thread that moves its epoch.
    ///
    /// # Errors
    /// If wasmtime does not support this machine, or no thread can be started.
    pub fn new() -> Result<Engine, EngineError> {
        let error = |e: &dyn std::fmt::Display| EngineError(format!("{e:#}"));
        let mut config = Config::new();
        config
            .wasm_component_model(true)
            // Calls are synchronous: without it, entering a component costs a third.
            .concurrency_support(false)
            .epoch_interruption(true);
        let wasm = wasmtime::Engine::new(&config).map_err(|e| error(&e))?;
        let mut linker = Linker::new(&wasm);
        Router::add_to_linker::<_, HasSelf<_>>(&mut linker, |state| state)
            .map_err(|e| error(&e))?;
        tick(wasm.weak()).map_err(|e| error(&e))?;
        Ok(Engine {
            wasm,
            linker,
            cache: None,
        })
    }

    /// Keeps compiled code there.
    #[must_use]
    pub fn with_cache(mut self, cache: CodeCache) -> Engine {
        self.cache = Some(cache);
        self
    }
}

/// The thread ends with the last thing that is made of the engine: a policy may outlive its loader.
fn tick(engine: EngineWeak) -> std::io::Result<()> {
    let tick = move || {
        while let Some(engine) = engine.upgrade() {
            engine.increment_epoch();
            drop(engine);
            thread::park_timeout(Duration::from_millis(TICK_MS));
        }
    };
    (thread::Builder::new().name("pointsman-epoch".into())).spawn(tick)?;
    Ok(())
}
