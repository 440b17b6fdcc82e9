use super::{Client, Engine, Got, Least, get, until};
use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use pointsman_core::{Core, Limits, Load, Phase, Source, Target};
use pointsman_proxy::{
    Breaker, Changes, Dialect, Endpoint, Error, Pool, Proxy, Reloader, Settings, SystemClock,
    Witnesses,
};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use tokio::sync::oneshot;

/// A proxy to be.
pub struct Rig {
    pub settings: Settings,
    pub witnesses: Witnesses,
    source: Arc<dyn Source>,
}

impl Rig {
    /// One thread, one pool, no breaker.
    pub fn new() -> Rig {
        let free = SocketAddr::from(([127, 0, 0, 1], 0));
        let pool = Pool {
            name: "main".to_owned(),
            role: Phase::Serve,
            dialect: Dialect::OpenAi,
            endpoints: Vec::new(),
            health: None,
            breaker: Breaker {
                failures: 0,
                ..Breaker::default()
            },
        };
        let settings = Settings {
            listen: free,
            admin: free,
            threads: 1,
            pools: vec![pool],
            ..Settings::default()
        };
        Rig {
            settings,
            witnesses: Witnesses::default(),
            source: Arc::new(Least::default()),
        }
    }

    pub fn endpoint(self, name: &str, engine: &Engine) -> Rig {
        self.url(name, &engine.url(), 1)
    }

    pub fn url(mut self, name: &str, url: &str, ranks: u32) -> Rig {
        self.settings.pools[0]
            .endpoints
            .push(endpoint(name, url, ranks));
        self
    }

    pub fn source(mut self, source: impl Source + 'static) -> Rig {
        self.source = Arc::new(source);
        self
    }

    pub fn with(mut self, change: impl FnOnce(&mut Settings)) -> Rig {
        change(&mut self.settings);
        self
    }

    pub fn start(self) -> Running {
        let core = Arc::new(Core::new(Limits::default(), Arc::new(SystemClock::start())));
        let pools = Mutex::new(self.settings.pools.clone());
        let proxy = Proxy::bind(self.settings, core.clone(), self.source, self.witnesses).unwrap();
        let (address, admin) = (proxy.data_addr(), proxy.admin_addr());
        let reloader = proxy.reloader();
        let (stop, stopped) = oneshot::channel::<()>();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .build()
                .unwrap();
            runtime.block_on(proxy.run(async {
                let _ = stopped.await;
            }))
        });
        Running {
            core,
            address,
            admin,
            reloader,
            pools,
            stop: Some(stop),
            thread: Some(thread),
        }
    }
}

pub fn endpoint(name: &str, url: &str, ranks: u32) -> Endpoint {
    Endpoint {
        name: name.to_owned(),
        url: url.to_owned(),
        ranks,
        models: None,
        labels: Vec::new(),
    }
}

/// A proxy that serves.
pub struct Running {
    pub core: Arc<Core>,
    pub address: SocketAddr,
    pub admin: SocketAddr,
    reloader: Reloader,
    pools: Mutex<Vec<Pool>>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<Result<(), pointsman_proxy::Error>>>,
}

impl Running {
    pub async fn client(&self) -> Client {
        Client::connect(self.address).await
    }

    /// Over a connection of its own.
    pub async fn send(&self, request: Request<Full<Bytes>>) -> Got {
        self.client().await.send(request).await
    }

    /// Makes other pools of those that are.
    pub fn reload(&self, change: impl FnOnce(&mut Pool)) -> Result<Changes, Error> {
        let mut now = self.pools.lock().unwrap();
        let mut pools = now.clone();
        change(&mut pools[0]);
        let changes = self.reloader.plan(&pools)?.apply();
        *now = pools;
        Ok(changes)
    }

    /// "name" → number of the targets of the fleet.
    pub fn targets(&self) -> Vec<(String, Target)> {
        (self.core.fleet.snapshot().targets())
            .map(|(target, spec)| (spec.endpoint.name.clone(), target))
            .collect()
    }

    pub async fn metrics(&self) -> String {
        let mut client = Client::connect(self.admin).await;
        client.send(get("/metrics", &[])).await.text().to_owned()
    }

    pub fn load(&self, target: Target) -> Load {
        self.core.fleet.snapshot().ledger().load(target)
    }

    pub fn takes(&self, target: Target) -> bool {
        let standing = self.core.fleet.snapshot().standing(target).unwrap();
        standing.healthy && standing.closed
    }

    /// Waits until nothing is outstanding on any target.
    pub async fn drained(&self) {
        until("every gauge back at zero", || {
            let fleet = self.core.fleet.snapshot();
            fleet.targets().chain(fleet.leaving()).all(|(target, _)| {
                let load = fleet.ledger().load(target);
                (load.requests, load.prefill_tokens, load.context_tokens) == (0, 0, 0)
            })
        })
        .await;
    }

    /// Tells it to stop; the thread ends when it has.
    pub fn stop(&mut self) -> std::thread::JoinHandle<Result<(), pointsman_proxy::Error>> {
        drop(self.stop.take());
        self.thread.take().unwrap()
    }
}
