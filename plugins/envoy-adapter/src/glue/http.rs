//! A request and its answer, as Envoy's filter chain sees them.

use super::pairs::pairs;
use super::policy::Fused;
use super::{Vm, now_ms, vm};
use crate::flight::{Departure, Ending, Fate, Flight, Head, begin};
use crate::{control, is_control, wants_body};
use ::http::{HeaderMap, HeaderName, HeaderValue};
use bytes::Bytes;
use proxy_wasm::traits::{Context, HttpContext};
use proxy_wasm::types::{Action, MapType};

const DESTINATION: &str = "x-gateway-destination-endpoint";
/// Obeyed by Envoy's router, and taken away.
const MOST_RETRIES: &str = "x-envoy-max-retries";
const CONTROL: &str = "x-pointsman-control";

/// Of a request, most often at most.
const HEADERS: usize = 24;

/// What the head of an answer says.
#[derive(Default)]
struct Said {
    status: u16,
    retry_after: bool,
    /// Envoy's router noted how long an engine took. Its own answers never have that; but it may be told
    /// not to note it.
    by_engine: bool,
    /// how often the request was sent
    attempts: Option<u32>,
}

impl Said {
    fn now() -> Said {
        let number = |value: &[u8]| std::str::from_utf8(value).ok()?.parse::<u32>().ok();
        let mut said = Said::default();
        for (name, value) in pairs(MapType::HttpResponseHeaders) {
            match &*name {
                b":status" => {
                    let status = number(&value).and_then(|status| u16::try_from(status).ok());
                    said.status = status.unwrap_or(0);
                }
                b"retry-after" => said.retry_after = true,
                b"x-envoy-upstream-service-time" => said.by_engine = true,
                b"x-envoy-attempt-count" => said.attempts = number(&value),
                _ => {}
            }
        }
        said
    }
}

/// See the module.
#[derive(Default)]
pub(super) struct Http {
    /// while the body is read
    waiting: Option<HeaderMap>,
    flight: Option<Box<Flight>>,
}

impl Http {
    fn decide(&mut self, vm: &Vm, headers: HeaderMap, body: Option<Vec<u8>>) -> Action {
        let read = body.as_ref().map_or(0, Vec::len);
        let mut router = Fused { wants: vm.wants };
        match begin(&vm.site, &mut router, headers, body) {
            Fate::Leaves(flight, departure) => {
                self.depart(&departure, read);
                self.flight = Some(flight);
                Action::Continue
            }
            Fate::Stays(answer, said) => {
                let own = answer.headers();
                let own = own.iter().map(|(name, value)| (*name, value.as_str()));
                let said = said
                    .iter()
                    .map(|(name, value)| (name.as_str(), value.as_str()));
                let headers: Vec<(&str, &str)> = own.chain(said).collect();
                self.send_http_response(answer.status, headers, Some(answer.body().as_bytes()));
                Action::Pause
            }
        }
    }

    fn depart(&self, departure: &Departure, read: usize) {
        for name in &departure.strip {
            self.set_http_request_header(name, None);
        }
        for (name, value) in &departure.add {
            self.set_http_request_header(name, Some(value));
        }
        if let Some(body) = &departure.body {
            self.set_http_request_body(0, read, body);
            self.set_http_request_header("content-length", Some(&body.len().to_string()));
        }
        self.set_http_request_header(DESTINATION, Some(&departure.destinations));
        if !departure.destinations.contains(',') {
            // Envoy would send it to any engine.
            self.set_http_request_header(MOST_RETRIES, Some("0"));
        }
    }

    /// Of the engine that the request was sent to last, where it may be one of two.
    fn address(&self) -> String {
        match &self.flight {
            Some(flight) if flight.may_be_elsewhere() => self.property(["upstream", "address"]),
            _ => String::new(),
        }
    }

    /// So much of the answer has come.
    fn comes(&mut self, end_of_stream: bool) {
        if let (true, Some(flight)) = (end_of_stream, &mut self.flight) {
            flight.came_to_its_end();
        }
    }

    /// As Envoy logs it.
    fn ending(&self) -> Ending {
        let details = self.property(["response", "code_details"]);
        if details.is_empty() {
            Ending::ClientLeft
        } else {
            Ending::of(&details)
        }
    }

    fn property(&self, path: [&str; 2]) -> String {
        let value = self.get_property(path.to_vec()).unwrap_or_default();
        String::from_utf8(value).unwrap_or_default()
    }
}

impl Context for Http {}

impl HttpContext for Http {
    fn on_http_request_headers(&mut self, _: usize, end_of_stream: bool) -> Action {
        let Some(vm) = vm() else {
            return Action::Continue;
        };
        let now = now_ms();
        vm.site.tell(now);
        let mut headers = HeaderMap::with_capacity(HEADERS);
        let mut path = Bytes::new();
        for (name, value) in pairs(MapType::HttpRequestHeaders) {
            if name == ":path" {
                path = value;
            } else if let (Ok(name), Ok(value)) = (
                HeaderName::from_bytes(&name),
                HeaderValue::from_maybe_shared(value),
            ) {
                headers.append(name, value);
            }
        }
        if is_control(&vm.site, &String::from_utf8_lossy(&path)) {
            let wanted = headers.get(CONTROL).map(HeaderValue::as_bytes);
            let wanted = String::from_utf8_lossy(wanted.unwrap_or(b"{}"));
            let (status, body) = control(&vm.site, &wanted, vm.number, now);
            self.send_http_response(status, Vec::new(), Some(body.as_bytes()));
            return Action::Pause;
        }
        if !end_of_stream && wants_body(&vm.site, &headers) {
            self.waiting = Some(headers);
            return Action::Pause;
        }
        self.decide(&vm, headers, None)
    }

    fn on_http_request_body(&mut self, bytes: usize, end_of_stream: bool) -> Action {
        let Some(headers) = self.waiting.take() else {
            return Action::Continue;
        };
        let Some(vm) = vm() else {
            return Action::Continue;
        };
        let limit = vm.site.inspect_bytes();
        if !end_of_stream && bytes <= limit {
            self.waiting = Some(headers);
            return Action::Pause;
        }
        vm.site.tell(now_ms());
        let body = (end_of_stream && bytes <= limit)
            .then(|| self.get_http_request_body(0, bytes))
            .flatten();
        self.decide(&vm, headers, body)
    }

    fn on_http_response_headers(&mut self, _: usize, end_of_stream: bool) -> Action {
        let (Some(vm), true) = (vm(), self.flight.is_some()) else {
            return Action::Continue;
        };
        // Each question to Envoy costs about a microsecond.
        let said = Said::now();
        // Envoy's own answers say nothing of an engine; the end will.
        if !said.by_engine && self.ending() != Ending::Complete {
            return Action::Continue;
        }
        vm.site.tell(now_ms());
        let address = match said.attempts {
            Some(1) if vm.site.counts_attempts() => String::new(),
            _ => self.address(),
        };
        let head = Head {
            status: said.status,
            retry_after: said.retry_after,
            address: &address,
        };
        let mut router = Fused { wants: vm.wants };
        if let Some(flight) = &mut self.flight {
            for (name, value) in flight.head(&vm.site, &mut router, head) {
                self.set_http_response_header(&name, Some(&value));
            }
        }
        self.comes(end_of_stream);
        Action::Continue
    }

    fn on_http_response_body(&mut self, bytes: usize, end_of_stream: bool) -> Action {
        if let (true, Some(flight), Some(vm)) = (bytes > 0, &mut self.flight, vm())
            && flight.awaits_output()
        {
            vm.site.tell(now_ms());
            flight.output(&vm.site, &mut Fused { wants: vm.wants });
        }
        self.comes(end_of_stream);
        Action::Continue
    }

    fn on_http_response_trailers(&mut self, _: usize) -> Action {
        self.comes(true);
        Action::Continue
    }

    fn on_log(&mut self) {
        let address = self.address();
        let (Some(flight), Some(vm)) = (self.flight.take(), vm()) else {
            return;
        };
        vm.site.tell(now_ms());
        let ending = flight.ending().unwrap_or_else(|| self.ending());
        let mut router = Fused { wants: vm.wants };
        flight.end(&vm.site, &mut router, ending, &address);
        vm.site.logged();
    }
}
