//! One network for all services of a test binary: an engine has address ranges for about thirty. The first user creates
//! it, and the last removes it.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bollard::models::NetworkCreateRequest;
use sandboxd::engine::docker::DockerEngine;

use crate::engine::{blocking, engine_host, raw};

static USERS: Mutex<usize> = Mutex::new(0);

pub(crate) struct SharedNetwork(());

impl SharedNetwork {
    pub(crate) fn join() -> Self {
        let mut users = users();
        if *users == 0 {
            blocking(async {
                let isolated = HashMap::from([("com.docker.network.bridge.enable_icc".into(), "false".into())]);
                let labels = HashMap::from([("sandboxd.test".into(), "true".into())]);
                let request = NetworkCreateRequest {
                    name: Self::name(),
                    options: Some(isolated),
                    labels: Some(labels),
                    ..Default::default()
                };
                docker().await.create_network(request).await.expect("a network");
            });
        }
        *users += 1;
        Self(())
    }

    /// Returns a name that is also unique among several runs on one engine.
    pub(crate) fn name() -> String {
        format!("sandboxd-test-{}", std::process::id())
    }
}

impl Drop for SharedNetwork {
    fn drop(&mut self) {
        let mut users = users();
        *users -= 1;
        if *users == 0 {
            blocking(async {
                let _ = docker().await.remove_network(&Self::name()).await;
            });
        }
    }
}

/// Locks the user count. The lock is held while the network is created or removed, so that no service uses it
/// meanwhile.
fn users() -> MutexGuard<'static, usize> {
    USERS.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn docker() -> bollard::Docker {
    raw(&DockerEngine::connect(&engine_host()).expect("a valid host")).await.expect("an engine")
}
