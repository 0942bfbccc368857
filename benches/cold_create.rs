//! What the service adds to the engine's own time when a chat gets a new sandbox, and when it is deleted.
//!
//! Measured against the same calls made with bollard alone, for a container made of the same parts, in turn.

#[path = "support/service.rs"]
mod service;
#[path = "support/statistics.rs"]
mod statistics;
#[path = "support/table.rs"]
mod table;

use std::error::Error;
use std::time::{Duration, Instant};

use bollard::models::ContainerCreateBody;
use bollard::query_parameters::{
    CreateContainerOptionsBuilder, RemoveContainerOptionsBuilder, StopContainerOptionsBuilder,
};
use serde_json::{Value, json};
use service::Service;
use statistics::{Ratio, median, quantile};
use table::{Table, whole};
use uuid::Uuid;

type Outcome<T> = Result<T, Box<dyn Error>>;

#[tokio::main]
async fn main() -> Outcome<()> {
    let service = Service::start().await?;
    let body = body(&service).await?;
    let (mut through_service, mut directly) = (Times::default(), Times::default());
    for round in 0..rounds() {
        // Whoever comes first finds the engine in another state than whoever comes second.
        if round % 2 == 0 {
            through_service.push(through(&service).await?);
            directly.push(with_bollard(&service, body.clone()).await?);
        } else {
            directly.push(with_bollard(&service, body.clone()).await?);
            through_service.push(through(&service).await?);
        }
    }

    let mut table = Table::new(["cold", "p50 ms", "p95 ms", "p50 ÷ bollard", "added ms"]);
    let mut compare = |name: &str, measured: &[f64], against: &[f64]| {
        let added: Vec<_> = measured.iter().zip(against).map(|(measured, against)| measured - against).collect();
        table.row([
            name.to_owned(),
            whole(median(measured)),
            whole(quantile(measured, 0.95)),
            Ratio::of_medians(measured, against).to_string(),
            format!("{:+.1}", median(&added)),
        ]);
    };
    compare("bollard: create, start, inspect", &directly.create, &directly.create);
    compare("sandbox.create", &through_service.create, &directly.create);
    compare("bollard: stop, remove", &directly.delete, &directly.delete);
    compare("sandbox.delete", &through_service.delete, &directly.delete);
    println!("\n{table}");
    Ok(())
}

/// `SANDBOXD_BENCH=quick` shows that it runs, and nothing else.
fn rounds() -> usize {
    if std::env::var("SANDBOXD_BENCH").is_ok_and(|value| value == "quick") { 2 } else { 50 }
}

/// Milliseconds.
#[derive(Default)]
struct Times {
    create: Vec<f64>,
    delete: Vec<f64>,
}

impl Times {
    fn push(&mut self, (create, delete): (Duration, Duration)) {
        self.create.push(create.as_secs_f64() * 1e3);
        self.delete.push(delete.as_secs_f64() * 1e3);
    }
}

async fn through(service: &Service) -> Outcome<(Duration, Duration)> {
    let chat = Uuid::new_v4().to_string();
    let params = service.create_params(&chat)?;
    let began = Instant::now();
    let created: Value = service.client.call("sandbox.create", params).await?;
    let create = began.elapsed();
    assert_eq!(created["outcome"], "created");

    let began = Instant::now();
    let deleted: Value = service.client.call("sandbox.delete", json!({ "chat_id": chat })).await?;
    let delete = began.elapsed();
    assert_eq!(deleted["result"], "deleted");
    Ok((create, delete))
}

async fn with_bollard(service: &Service, body: ContainerCreateBody) -> Outcome<(Duration, Duration)> {
    let docker = &service.docker;
    let name = format!("{}-{}", service.instance, Uuid::new_v4());
    let began = Instant::now();
    let options = CreateContainerOptionsBuilder::default().name(&name).build();
    let id = docker.create_container(Some(options), body).await?.id;
    docker.start_container(&id, None).await?;
    docker.inspect_container(&id, None).await?;
    let create = began.elapsed();

    let began = Instant::now();
    // As much of `teardown.graceful` as the service leaves to the processes in the container.
    docker.stop_container(&id, Some(StopContainerOptionsBuilder::default().t(2).build())).await?;
    docker.remove_container(&id, Some(RemoveContainerOptionsBuilder::default().force(true).v(true).build())).await?;
    Ok((create, began.elapsed()))
}

/// What the service asks the engine for, as the engine tells it: limits, mounts, network and all.
async fn body(service: &Service) -> Outcome<ContainerCreateBody> {
    let chat = Uuid::new_v4().to_string();
    let created: Value = service.client.call("sandbox.create", service.create_params(&chat)?).await?;
    let id = created["container_id"].as_str().ok_or("a running sandbox has a container")?;
    let container = service.docker.inspect_container(id, None).await?;
    service.client.call::<Value>("sandbox.delete", json!({ "chat_id": chat })).await?;

    let config = container.config.ok_or("every container has a configuration")?;
    let labels = config.labels.unwrap_or_default().into_iter();
    Ok(ContainerCreateBody {
        image: config.image,
        cmd: config.cmd,
        env: config.env,
        user: config.user,
        hostname: config.hostname,
        host_config: container.host_config,
        // As many labels, but none that makes the container look like a sandbox.
        labels: Some(
            labels
                .map(|(name, value)| (name.replace("sandboxd.", "bench."), value))
                .chain([(service::LABEL.to_owned(), service.instance.clone())])
                .collect(),
        ),
        ..Default::default()
    })
}
