//! A probe with a set behaviour, which records its tries.

use std::net::SocketAddr;
use std::sync::Arc;

use async_trait::async_trait;
use sandboxd_actors::ports::probe::{NotReady, Probe};
use tokio::sync::watch;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Behaviour {
    Ready,
    Refuse,
    /// The host itself cannot make the try.
    Fail,
    /// The probe does not answer while this is set.
    Hang,
}

/// A probe whose tries are recorded as text: `http 10.0.0.1:80 /ready`.
#[derive(Clone)]
pub(crate) struct TestProbe {
    behaviour: Arc<watch::Sender<Behaviour>>,
    tries: Arc<watch::Sender<Vec<String>>>,
}

impl Default for TestProbe {
    fn default() -> Self {
        Self {
            behaviour: Arc::new(watch::Sender::new(Behaviour::Ready)),
            tries: Arc::new(watch::Sender::new(Vec::new())),
        }
    }
}

impl TestProbe {
    pub(crate) fn behave(&self, behaviour: Behaviour) {
        self.behaviour.send_replace(behaviour);
    }

    pub(crate) fn tries(&self) -> Vec<String> {
        self.tries.borrow().clone()
    }

    /// Resolves once this number of tries were made.
    pub(crate) async fn tried(&self, times: usize) {
        let mut tries = self.tries.subscribe();
        super::in_time(tries.wait_for(|tries| tries.len() >= times)).await.expect("the probe is there");
    }

    async fn answer(&self, tried: String) -> Result<(), NotReady> {
        self.tries.send_modify(|tries| tries.push(tried));
        let mut behaviour = self.behaviour.subscribe();
        let answers = behaviour.wait_for(|behaviour| *behaviour != Behaviour::Hang).await.map(|answers| *answers);
        match answers {
            Ok(Behaviour::Ready) => Ok(()),
            Ok(Behaviour::Fail) => Err(NotReady::NotProbed("too many open files".into())),
            _ => Err(NotReady::Refused("connection refused".into())),
        }
    }
}

#[async_trait]
impl Probe for TestProbe {
    async fn http(&self, address: SocketAddr, path: &str) -> Result<(), NotReady> {
        self.answer(format!("http {address} {path}")).await
    }

    async fn tcp(&self, address: SocketAddr) -> Result<(), NotReady> {
        self.answer(format!("tcp {address}")).await
    }
}
