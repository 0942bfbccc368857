//! Tests of start-up work that continues while the service already serves.

use std::sync::Arc;

use crate::support::{FitEngine, PATIENCE};
use sandboxd::config::Config;
use sandboxd::engine::guest::NoGuestAccess;
use sandboxd::service::{Dependencies, Service, ServiceError};
use sandboxd_actors::journal::memory::MemoryJournal;
use sandboxd_actors::ports::engine::Operation;
use sandboxd_actors::ports::engine::fake::{FakeEngine, Fault};
use sandboxd_actors::ports::images::fake::FakeImages;
use tokio_util::sync::CancellationToken;

#[tokio::test]
async fn a_panic_in_the_work_at_start_up_ends_the_service_with_an_error() {
    let directory = tempfile::tempdir().expect("a directory");
    let place = directory.path().canonicalize().expect("canonical");
    for name in ["volumes", "dependencies", "tools"] {
        std::fs::create_dir_all(place.join(name)).expect("created");
    }
    let settings = format!(
        "instance.name = 'start-up-{}'\nsocket.path = '{p}/socket'\nstate.dir = '{p}/state'\nchats.root = '{p}/chats'\n\
         volumes.roots = ['{p}/volumes']\nmounts.dependencies_source = '{p}/dependencies'\n\
         mounts.lambda_tools_source = '{p}/tools'\n",
        std::process::id(),
        p = place.display()
    );
    let file = place.join("sandboxd.toml");
    std::fs::write(&file, settings).expect("written");
    let config = Config::load(Some(&file), std::iter::empty::<(String, String)>()).expect("valid");
    let engine = FakeEngine::new();
    // The engine does not answer at first, so the service serves without it and retries.
    engine.fail_next(Operation::Identify, Fault::unreachable());
    engine.fail_next(Operation::Identify, Fault::Panic);
    let outside = Dependencies {
        engine: Arc::new(engine),
        engine_guest: Arc::new(NoGuestAccess),
        images: Arc::new(FakeImages::new()),
        condition: Arc::new(FitEngine),
        engine_sockets: Vec::new(),
        journal: MemoryJournal::new(),
        listener: None,
    };
    let service = Service::start(&config, outside).await.expect("it starts without its engine");
    let outcome = tokio::time::timeout(PATIENCE, service.run(CancellationToken::new())).await;
    let failure = outcome.expect("it notices").expect_err("it failed");
    assert!(matches!(failure, ServiceError::Background(_)), "{failure}");
    assert!(failure.to_string().contains("panicked"), "{failure}");
}
