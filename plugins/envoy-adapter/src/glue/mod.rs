//! Between proxy-wasm, the policy and the logic. Nothing is decided here.

#[allow(missing_docs, reason = "generated from the WIT, which is documented")]
#[allow(clippy::all, reason = "generated")]
#[allow(unsafe_code, reason = "generated: the canonical ABI")]
mod bindings {
    wit_bindgen::generate!({
        world: "adapter",
        path: "../../wit",
        export_prefix: "fuse:",
    });
    export!(Host);
    use super::host::Host;
}

mod convert;
mod host;
mod http;
mod memory;
mod pairs;
mod policy;
mod root;
mod store;

use crate::site::Site;
use proxy_wasm::types::LogLevel;
use std::cell::RefCell;
use std::rc::Rc;
use store::Store;

#[global_allocator]
static MEMORY: memory::Lists = memory::Lists::new();

/// What the VM has once it is configured.
struct Vm {
    site: Site<Store>,
    number: u64,
    /// `first-output` and so on
    wants: pointsman_core::Wants,
}

thread_local! {
    static VM: RefCell<Option<Rc<Vm>>> = const { RefCell::new(None) };
}

fn vm() -> Option<Rc<Vm>> {
    VM.with_borrow(Clone::clone)
}

/// The time, in ms.
fn now_ms() -> u64 {
    let now = proxy_wasm::hostcalls::get_current_time();
    let since = now.ok().and_then(|now| {
        let since = now.duration_since(std::time::UNIX_EPOCH);
        since.ok()
    });
    since.map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(0))
}

fn log(level: LogLevel, message: &str) {
    // A host that takes no log has nobody to be told.
    let _ = proxy_wasm::hostcalls::log(level, message);
}

/// Envoy's first call, before there is any context.
#[allow(unsafe_code, reason = "the names are proxy-wasm's")]
#[unsafe(no_mangle)]
pub extern "C" fn _initialize() {
    std::panic::set_hook(Box::new(|panic| {
        log(LogLevel::Critical, &format!("adapter: {panic}"));
    }));
    proxy_wasm::set_log_level(LogLevel::Info);
    proxy_wasm::set_root_context(|_| Box::new(root::Root));
}

/// The fused module calls this before it ends a policy that does not end by itself.
#[allow(unsafe_code, reason = "the name is the fuser's")]
#[unsafe(no_mangle)]
pub extern "C" fn fuse_out_of_fuel() {
    log(
        LogLevel::Error,
        "the policy did not end within its fuel: this worker starts it anew",
    );
}
