//! Envoy's own configuration: listener, filters, cluster.

use super::{FILTER, quoted};
use std::fmt::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

/// See the module.
pub struct Bootstrap<'a> {
    pub listen: SocketAddr,
    pub admin: SocketAddr,
    /// the file of [`super::Filter`]
    pub filter: &'a Path,
    /// the engines' addresses, each once
    pub engines: Vec<String>,
    pub connect: Duration,
    /// how often a request is sent after the first time
    pub retries: u32,
    /// most bytes of a body that Envoy holds, for the filter and to send it once more
    pub body_bytes: usize,
}

impl Bootstrap<'_> {
    /// The file.
    pub fn yaml(&self) -> String {
        let (listen, admin) = (address(self.listen), address(self.admin));
        let filter = quoted(&self.filter.to_string_lossy());
        let connect = self.connect.as_secs_f64();
        let engines = self.engines();
        let retry = self.retry();
        let body = self.body();
        format!(
            r#"# Envoy in front of inference engines, with a Pointsman policy that picks engine and rank.
# envoy -c THIS_FILE --concurrency THREADS
node: {{ id: {FILTER}, cluster: {FILTER} }}        # what is discovered, files too, needs a name to ask for
admin: {{ address: {admin} }}
static_resources:
  listeners:
  - name: clients
    address: {listen}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: clients
          # A long prompt may take minutes before its first byte.
          stream_idle_timeout: 3600s
          # The id seeds what a policy decides by chance, and engines log it.
          preserve_external_request_id: true
          http_filters:
          # No client names an address: whatever stands in this header is obeyed below.
          - name: strip_from_clients
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.header_mutation.v3.HeaderMutation
              mutations: {{ request_mutations: [ {{ remove: x-gateway-destination-endpoint }} ] }}
          # The policy. From a file of its own, so that it can be replaced while traffic flows.
          - name: {FILTER}
            config_discovery:
              config_source:
                resource_api_version: V3
                path_config_source: {{ path: {filter} }}
              type_urls: [ type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm ]
          - name: envoy.filters.http.router
            typed_config: {{ "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router }}
          route_config:
            name: engines
            virtual_hosts:
            - name: engines
              domains: ["*"]
              # Then the policy need not ask who answered.
              include_attempt_count_in_response: true
              routes:
              - match: {{ prefix: / }}
{body}                route:
                  cluster: engines
                  timeout: 0s            # a stream may take as long as it takes
{retry}
  clusters:
  - name: engines
    type: STATIC
    connect_timeout: {connect}s
    # Long streams are many at one time, and a dead engine costs each of its requests a retry: Envoy's
    # defaults (1024 requests, 3 retries at one time) would answer the rest with 503.
    circuit_breakers:
      thresholds:
      - {{ max_connections: 65536, max_pending_requests: 65536, max_requests: 65536, max_retries: 65536 }}
    # The header that the policy sets is an ordered list: the first address, and the one to try when
    # that fails. Without it (no policy decides, because it traps or is not there yet) it is any.
    load_balancing_policy:
      policies:
      - typed_extension_config:
          name: envoy.load_balancing_policies.override_host
          typed_config:
            "@type": type.googleapis.com/envoy.extensions.load_balancing_policies.override_host.v3.OverrideHost
            override_host_sources: [ {{ header: x-gateway-destination-endpoint }} ]
            fallback_policy:
              policies:
              - typed_extension_config:
                  name: envoy.load_balancing_policies.round_robin
                  typed_config: {{ "@type": type.googleapis.com/envoy.extensions.load_balancing_policies.round_robin.v3.RoundRobin }}
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: {{ http_protocol_options: {{}} }}
        http_filters:
        # After the host is picked; taken away on the route it would never be seen.
        - name: strip_from_engines
          typed_config:
            "@type": type.googleapis.com/envoy.extensions.filters.http.header_mutation.v3.HeaderMutation
            mutations: {{ request_mutations: [ {{ remove: x-gateway-destination-endpoint }} ] }}
        - name: envoy.filters.http.upstream_codec
          typed_config: {{ "@type": type.googleapis.com/envoy.extensions.filters.http.upstream_codec.v3.UpstreamCodec }}
    load_assignment:
      cluster_name: engines
      endpoints:
      - lb_endpoints:
{engines}"#
        )
    }

    fn engines(&self) -> String {
        let mut lines = String::new();
        for engine in &self.engines {
            if let Ok(engine) = engine.parse() {
                let address = address(engine);
                // Writing to a text does not fail.
                let _ = writeln!(lines, "        - endpoint: {{ address: {address} }}");
            }
        }
        lines
    }

    fn retry(&self) -> String {
        if self.retries == 0 {
            return String::new();
        }
        format!(
            "                  # Before the first byte only. The policy has chosen where to.
                  retry_policy:
                    retry_on: connect-failure,refused-stream,reset,retriable-status-codes
                    retriable_status_codes: [ 500, 502, 504 ]
                    num_retries: {}
",
            self.retries
        )
    }

    fn body(&self) -> String {
        let bytes = self.body_bytes;
        format!(
            "                # So much of a body is held: for a policy that waits for it (larger ones pass it unread,
                # and Envoy answers with 413 if it cannot hold them), and to send it to the second engine.
                request_body_buffer_limit: {bytes}
"
        )
    }
}

fn address(address: SocketAddr) -> String {
    format!(
        "{{ socket_address: {{ address: {}, port_value: {} }} }}",
        quoted(&address.ip().to_string()),
        address.port()
    )
}
