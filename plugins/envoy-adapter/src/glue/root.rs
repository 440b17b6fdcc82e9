//! The plugin: configured once for each VM.

use super::bindings::pointsman::policy::policy;
use super::http::Http;
use super::store::Store;
use super::{VM, Vm, convert, log, now_ms, vm};
use crate::config::Config;
use crate::shared::Shared;
use crate::site::Site;
use proxy_wasm::traits::{Context, HttpContext, RootContext};
use proxy_wasm::types::{ContextType, LogLevel};
use std::rc::Rc;
use std::time::Duration;

/// Between two ticks.
const TICK: Duration = Duration::from_secs(1);

/// See the module.
pub(super) struct Root;

impl Root {
    fn configure(&self) -> Result<Vm, String> {
        if vm().is_some() {
            // Envoy gives one VM to all plugins of the same code, vm_id and VM configuration; a policy
            // is configured once.
            return Err("this VM is configured already: give each configuration a \
                        vm_config.configuration of its own, as `pointsman envoy config` does"
                .to_owned());
        }
        let json = self.get_plugin_configuration().unwrap_or_default();
        let config = Config::read(&json)?;
        let of_policy = serde_json::to_string(&config.policy).map_err(|e| e.to_string())?;
        let description = policy::configure(&of_policy)
            .map_err(|refusal| format!("the policy refuses its configuration: {refusal}"))?;
        let (policy, wants) = convert::description(description);
        let number = number();
        Ok(Vm {
            site: Site::new(config, policy, Store, number, now_ms())?,
            number,
            wants,
        })
    }
}

/// Another one for each VM that shares the store, also of one that began in the same moment.
fn number() -> u64 {
    let mut number = 0;
    Store.change("pointsman/vm", |value| {
        let last = value.first_chunk().map_or(0, |b| u64::from_le_bytes(*b));
        number = last + 1;
        Some(number.to_le_bytes().to_vec())
    });
    number
}

impl Context for Root {}

impl RootContext for Root {
    fn on_configure(&mut self, _: usize) -> bool {
        match self.configure() {
            Ok(vm) => {
                let policy = vm.site.policy();
                log(
                    LogLevel::Info,
                    &format!("policy {} {}", policy.name, policy.version),
                );
                VM.set(Some(Rc::new(vm)));
                self.set_tick_period(TICK);
                true
            }
            Err(error) => {
                log(LogLevel::Error, &error);
                false
            }
        }
    }

    fn on_tick(&mut self) {
        if let Some(vm) = vm() {
            vm.site.tick(now_ms());
        }
    }

    fn create_http_context(&self, _: u32) -> Option<Box<dyn HttpContext>> {
        Some(Box::new(Http::default()))
    }

    fn get_type(&self) -> Option<ContextType> {
        Some(ContextType::HttpContext)
    }
}
