//! What any proxy-wasm filter costs: one that is called and does nothing. With the configuration `body`
//! it also waits for the request's body and reads it, as a policy does that looks into it.

#![cfg(target_arch = "wasm32")]

use proxy_wasm::traits::{Context, HttpContext, RootContext};
use proxy_wasm::types::{Action, ContextType};

#[derive(Default)]
struct Root {
    reads: bool,
}

struct Http {
    reads: bool,
}

impl Context for Root {}

impl RootContext for Root {
    fn on_configure(&mut self, _: usize) -> bool {
        let said = self.get_plugin_configuration().unwrap_or_default();
        self.reads = said == b"body";
        true
    }

    fn create_http_context(&self, _: u32) -> Option<Box<dyn HttpContext>> {
        Some(Box::new(Http { reads: self.reads }))
    }

    fn get_type(&self) -> Option<ContextType> {
        Some(ContextType::HttpContext)
    }
}

impl Context for Http {}

impl HttpContext for Http {
    fn on_http_request_headers(&mut self, _: usize, end: bool) -> Action {
        if self.reads && !end {
            Action::Pause
        } else {
            Action::Continue
        }
    }

    fn on_http_request_body(&mut self, bytes: usize, end: bool) -> Action {
        if !self.reads {
            return Action::Continue;
        }
        if !end {
            return Action::Pause;
        }
        std::hint::black_box(self.get_http_request_body(0, bytes));
        Action::Continue
    }
}

/// Envoy's first call.
#[allow(unsafe_code, reason = "the name is proxy-wasm's")]
#[unsafe(no_mangle)]
pub extern "C" fn _initialize() {
    proxy_wasm::set_root_context(|_| Box::new(Root::default()));
}
