//! `pointsman.toml`: `check` and `serve` refuse the same, with exit status 1 and the same words.

use crate::{PageRow, run};
use anyhow::Result;
use std::fmt::Write as _;

const GOOD: &str = r#"
[listen]
address = "127.0.0.1:0"
[admin]
address = "127.0.0.1:0"
[policy]
use = "least-tokens"
[[pool]]
name = "main"
endpoints = [{ name = "a", url = "http://127.0.0.1:9" }]
"#;

/// (what, lines before the good configuration or in place of a part of it, text of the message).
/// `old => new` replaces; anything else is put before.
const TABLE: &[(&str, &str, &str)] = &[
    (
        "no TOML at all",
        "listen = [",
        "TOML parse error at line 4, column 1",
    ),
    ("a table twice", "[listen]", "duplicate key"),
    ("an unknown section", "[pools]", "unknown field `pools`"),
    (
        "an unknown key",
        "[bindings]\nmaximum = 5",
        "unknown field `maximum`",
    ),
    (
        "an unknown key says where",
        "[bindings]\nmaximum = 5",
        "line 2, column 1",
    ),
    (
        "a number for a text",
        "use = \"least-tokens\" => use = 5",
        "invalid type: integer `5`, expected a string",
    ),
    (
        "a negative number",
        "[bindings]\nmax = -1",
        "invalid value: integer `-1`",
    ),
    (
        "no bindings",
        "[bindings]\nmax = 0",
        "bindings.max = 0: wanted 1 to 100000000",
    ),
    (
        "no lifetime",
        "[bindings]\nttl = \"0s\"",
        "bindings.ttl = 0ns: wanted more than 0s",
    ),
    (
        "a lifetime that no clock holds",
        "[bindings]\nttl = \"1000000years\"",
        "at most 1000 days",
    ),
    (
        "a lifetime without unit",
        "[bindings]\nttl = \"5\"",
        "string \"5\", expected a duration",
    ),
    (
        "a lifetime as a number",
        "[bindings]\nttl = 5",
        "invalid type: integer `5`",
    ),
    (
        "no attempts",
        "[retry]\nattempts = 0",
        "retry.attempts = 0: wanted 1 to 16",
    ),
    (
        "too many threads",
        "address = \"127.0.0.1:0\"\n[admin] => address = \"127.0.0.1:0\"\nthreads = 100000\n[admin]",
        "listen.threads = 100000: wanted 0 to 1024",
    ),
    (
        "a head limit below hyper's",
        "[limits]\nheader_bytes = 100",
        "limits.header_bytes = 100: wanted 8192 to 16777216",
    ),
    (
        "a body limit of nothing",
        "[limits]\nbody_bytes = 0",
        "limits.body_bytes = 0: wanted 1 to 1099511627776",
    ),
    (
        "no requests",
        "[limits]\nrequests_per_thread = 0",
        "limits.requests_per_thread = 0: wanted 1 to 1000000",
    ),
    (
        "no connections",
        "[limits]\nconnections_per_thread = 0",
        "limits.connections_per_thread = 0",
    ),
    (
        "no patience with clients",
        "[limits]\nclient = \"0s\"",
        "limits.client = 0ns: wanted more than 0s",
    ),
    (
        "more patience than a clock holds",
        "[limits]\nidle = \"90000days\"",
        "limits.idle",
    ),
    (
        "no time to decide",
        "use = \"least-tokens\" => use = \"least-tokens\"\ntime_limit_ms = 0",
        "policy.time_limit_ms = 0: wanted 1 to 10000",
    ),
    (
        "too much memory",
        "use = \"least-tokens\" => use = \"least-tokens\"\nmemory_limit_mb = 9999",
        "policy.memory_limit_mb = 9999: wanted 1 to 4096",
    ),
    (
        "an unknown fallback",
        "use = \"least-tokens\" => use = \"least-tokens\"\nfallback = \"luck\"",
        "unknown variant `luck`, expected `least-load` or `reject`",
    ),
    (
        "an unknown policy",
        "use = \"least-tokens\" => use = \"most-tokens\"",
        "policy \"most-tokens\": wanted the path of a .wasm file or one of least-tokens, session-affinity",
    ),
    (
        "a policy that is not there",
        "use = \"least-tokens\" => use = \"not/there.wasm\"",
        "cannot read the policy",
    ),
    (
        "another policy than was pinned",
        "use = \"least-tokens\" => use = \"least-tokens\"\nsha256 = \"00\"",
        "is not the one that was pinned: wanted sha256 00, found ",
    ),
    (
        "a policy's unknown option",
        "use = \"least-tokens\" => use = \"least-tokens\"\nconfig = { request_tokens = 1 }",
        "stage configure",
    ),
    (
        "no pool",
        "[[pool]]\nname = \"main\"\nendpoints = [{ name = \"a\", url = \"http://127.0.0.1:9\" }] => ",
        "missing field `pool`",
    ),
    (
        "no endpoint",
        "[{ name = \"a\", url = \"http://127.0.0.1:9\" }] => []",
        "pool[0].endpoints is empty",
    ),
    (
        "an endpoint twice",
        "[{ => [{ name = \"a\", url = \"http://b\" }, {",
        "there is another endpoint of this name",
    ),
    (
        "an endpoint without name",
        "name = \"a\" => name = \"\"",
        "pool[0].endpoints[0].name = \"\"",
    ),
    (
        "an endpoint with a rank in its name",
        "name = \"a\" => name = \"a/0\"",
        "wanted visible ASCII without \"/\"",
    ),
    (
        "no ranks",
        "name = \"a\" => ranks = 0, name = \"a\"",
        "pool[0].endpoints[0].ranks = 0: wanted 1 to 1024",
    ),
    (
        "no models",
        "name = \"a\" => models = [], name = \"a\"",
        "models is empty",
    ),
    (
        "an https engine",
        "http:// => https://",
        "put a TLS sidecar before the engine",
    ),
    (
        "an engine without scheme",
        "http://127.0.0.1:9 => 127.0.0.1:9",
        "does not begin with http://",
    ),
    (
        "an unknown dialect",
        "name = \"main\" => name = \"main\"\ndialect = \"trt\"",
        "unknown variant `trt`",
    ),
    (
        "only prefill",
        "name = \"main\" => name = \"main\"\nrole = \"prefill\"",
        "no pool with role = \"serve\"",
    ),
    (
        "a header that cannot be",
        "[session]\nheaders = [\"a b\"]",
        "\"a b\" is not a header name",
    ),
    (
        "a pointer that is none",
        "[session]\nbody = [\"user\"]",
        "\"user\" is not a JSON pointer",
    ),
    (
        "a target header that cannot be",
        "[session]\nexplicit_header = \":\"",
        "\":\" is not a header name",
    ),
    (
        "a health check without path",
        "[[pool]] => [[pool]]\nhealth = { path = \"health\" }",
        "wanted a path that starts with \"/\"",
    ),
    (
        "a health check without rest",
        "[[pool]] => [[pool]]\nhealth = { interval = \"0s\" }",
        "pool[0].health.interval = 0ns: wanted more than 0s",
    ),
    (
        "one address for both",
        "127.0.0.1:0 => 127.0.0.1:65000",
        "the admin side needs its own",
    ),
    (
        "a recorder's folder that is not there",
        "[recorder]\nfolder = \"not/there\"",
        "recorder.folder: cannot write to",
    ),
    (
        "a recorder's folder that is a file",
        "[recorder]\nfolder = \"pointsman.toml\"",
        "make that folder, and let this user write to it",
    ),
    (
        "a folder for windows that cannot be made",
        "[profile]\nfolder = \"not/there/at/all\"",
        "profile.folder: cannot write to",
    ),
    (
        "no windows to keep",
        "[profile]\nkeep = 0",
        "profile.keep = 0: wanted 1 to 1000",
    ),
    (
        "an unknown word of a deployment",
        "[[pool]] => [[pool]]\ndeployment = { max_batch = 1 }",
        "unknown field `max_batch`",
    ),
    (
        "a deployment of nothing",
        "[[pool]] => [[pool]]\ndeployment = { max_num_seqs = 0 }",
        "pool[0].deployment.max_num_seqs = 0: wanted 1 to 1048576",
    ),
    (
        "a batch budget that a full batch does not fit into",
        "[[pool]] => [[pool]]\ndeployment = { max_num_batched_tokens = 2047, num_speculative_tokens = 3, max_num_seqs = 256 }",
        "max_num_batched_tokens = 2047: wanted at least (num_speculative_tokens + 1) · 2 · max_num_seqs = (3 + 1) · 2 · 256 = 2048",
    ),
    (
        "the same without draft tokens",
        "[[pool]] => [[pool]]\ndeployment = { max_num_batched_tokens = 511, max_num_seqs = 256 }",
        "(0 + 1) · 2 · 256 = 512",
    ),
    (
        "a KV store with a spread cache where prompts are computed",
        "[[pool]] => [[pool]]\ndeployment = { kv_store = true, decode_context_parallel_size = 4 }",
        "kv_store = true with decode_context_parallel_size = 4 where role = \"serve\"",
    ),
    (
        "a cache spread over ranks that are not there",
        "[[pool]] => [[pool]]\ndeployment = { tensor_parallel_size = 8, decode_context_parallel_size = 3 }",
        "decode_context_parallel_size = 3: wanted a divisor of tensor_parallel_size = 8",
    ),
    (
        "more ranks than the engines have",
        "name = \"main\" => name = \"main\"\ndeployment = { data_parallel_size = 1 }\nbreaker = {}\nendpoints = [{ name = \"b\", url = \"http://b\", ranks = 4 }]\n[[pool]]\nname = \"more\"",
        "pool[0].endpoints[0].ranks = 4: wanted at most 1, as in pool[0].deployment.data_parallel_size",
    ),
    (
        "an address that is none",
        "127.0.0.1:0 => localhost",
        "invalid socket address",
    ),
];

#[tokio::test]
async fn each_mistake_in_the_configuration_is_refused_before_anything_starts() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("pointsman.toml");
    let path = path.to_str().unwrap();
    let mut wrong = String::new();
    for (what, change, wanted) in TABLE {
        let text = match change.split_once(" => ") {
            Some((old, new)) => {
                assert!(GOOD.contains(old), "{what}");
                GOOD.replace(old, new)
            }
            None => format!("{change}\n{GOOD}"),
        };
        std::fs::write(path, text)?;
        for command in ["check", "serve"] {
            let (status, said) = run(&[command, "--config", path]).await?;
            if status != 1 || !said.contains(wanted) {
                writeln!(
                    wrong,
                    "{what}: {command}: {status}, no {wanted:?} in {said}"
                )?;
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
    std::fs::write(path, GOOD)?;
    let (status, said) = run(&["check", "--config", path]).await?;
    assert_eq!(status, 0, "{said}");
    let (status, said) = run(&["check", "--config", "/not/there.toml"]).await?;
    assert!(
        status == 1 && said.contains("cannot read the configuration /not/there.toml"),
        "{said}"
    );
    Ok(())
}

#[tokio::test]
async fn an_address_that_is_taken_is_told_by_serve() -> Result<()> {
    let taken = std::net::TcpListener::bind("127.0.0.1:0")?;
    let address = taken.local_addr()?.to_string();
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("pointsman.toml");
    std::fs::write(&path, GOOD.replacen("127.0.0.1:0", &address, 1))?;
    let (status, said) = run(&["serve", "--config", path.to_str().unwrap()]).await?;
    let wanted = format!("cannot listen on {address} (listen)");
    assert!(status == 1 && said.contains(&wanted), "{status} {said}");
    Ok(())
}

/// For the page.
pub(crate) fn rows() -> Vec<PageRow> {
    (TABLE.iter())
        .map(|(what, _, text)| {
            [
                (*what).to_owned(),
                format!("… {text} …"),
                String::new(),
                String::new(),
            ]
        })
        .collect()
}
