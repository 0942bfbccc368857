//! A registry with one image, as a container in the engine's network: an engine trusts a registry on its loopback
//! address.

use std::collections::HashMap;

use bollard::Docker;
use bollard::models::{ContainerCreateBody, HostConfig};
use bollard::query_parameters::{CreateContainerOptions, RemoveContainerOptionsBuilder, RemoveImageOptions};

use crate::containers::Containers;
use crate::daemon::Daemon;
use crate::engine::{blocking, eventually};

/// Serves the image `test:v1`, but its layer only once `/open` exists, and prints the requests. With configured
/// credentials, it refuses other callers and reports the credentials that they sent.
const PROGRAM: &str = r#"
import base64, hashlib, http.server, io, json, os, sys, tarfile, time
name, expected = sys.argv[1:]
layer = io.BytesIO()
with tarfile.open(fileobj=layer, mode='w') as archive:
    content = name.encode()
    entry = tarfile.TarInfo('name'); entry.size = len(content)
    archive.addfile(entry, io.BytesIO(content))
layer = layer.getvalue()
digest = lambda data: 'sha256:' + hashlib.sha256(data).hexdigest()
config = json.dumps({'architecture': 'amd64', 'os': 'linux', 'config': {},
                     'rootfs': {'type': 'layers', 'diff_ids': [digest(layer)]}}).encode()
kind = 'application/vnd.docker.'
manifest = json.dumps({
    'schemaVersion': 2, 'mediaType': kind + 'distribution.manifest.v2+json',
    'config': {'mediaType': kind + 'container.image.v1+json', 'size': len(config), 'digest': digest(config)},
    'layers': [{'mediaType': kind + 'image.rootfs.diff.tar', 'size': len(layer), 'digest': digest(layer)}],
}).encode()
blobs = {digest(config): config, digest(layer): layer}

class Handler(http.server.BaseHTTPRequestHandler):
    def do_HEAD(self): self.do_GET()
    def do_GET(self):
        shown = base64.b64decode(self.headers.get('Authorization', '').removeprefix('Basic ')).decode()
        if expected and shown != expected: return self.refuse('not with ' + shown)
        last = self.path.rsplit('/', 1)[1]
        if self.path == '/v2/': return self.give(b'{}', 'application/json')
        if last in ('v1', digest(manifest)): return self.give(manifest, kind + 'distribution.manifest.v2+json')
        if last in blobs:
            if last == digest(layer):
                print('layer asked for', flush=True)
                while not os.path.exists('/open'): time.sleep(0.02)
            return self.give(blobs[last], 'application/octet-stream')
        self.send_error(404)
    def give(self, data, kind):
        self.send_response(200)
        self.send_header('Content-Type', kind)
        self.send_header('Content-Length', str(len(data)))
        self.send_header('Docker-Content-Digest', digest(data))
        self.end_headers()
        if self.command == 'GET': self.wfile.write(data)
    def refuse(self, why):
        data = json.dumps({'errors': [{'code': 'UNAUTHORIZED', 'message': why}]}).encode()
        self.send_response(401)
        self.send_header('WWW-Authenticate', 'Basic realm="registry"')
        self.send_header('Content-Type', 'application/json')
        self.send_header('Content-Length', str(len(data)))
        self.end_headers()
        if self.command == 'GET': self.wfile.write(data)
    def log_message(self, *words): pass

server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Handler)
print('port', server.server_port, flush=True)
server.serve_forever()
"#;

pub(super) struct Registry {
    containers: Containers,
    container: String,
    image: String,
}

impl Registry {
    pub(super) async fn start(service: &Daemon) -> Self {
        Self::expecting(service, "").await
    }

    /// Starts a registry that requires the credentials `user:password`.
    pub(super) async fn expecting(service: &Daemon, credentials: &str) -> Self {
        let containers = service.containers().await;
        let body = ContainerCreateBody {
            image: Some("sandboxd-python-git:test".into()),
            cmd: Some(["python3", "-c", PROGRAM, service.name(), credentials].map(String::from).to_vec()),
            labels: Some(HashMap::from([("sandboxd.test".into(), "registry".into())])),
            host_config: Some(HostConfig { network_mode: Some("host".into()), ..Default::default() }),
            ..Default::default()
        };
        let created = containers.docker.create_container(None::<CreateContainerOptions>, body).await.expect("created");
        let mut registry = Self { containers, container: created.id, image: String::new() };
        registry.containers.docker.start_container(&registry.container, None).await.expect("started");
        let port = eventually("the registry listens", || async {
            registry.printed().await.iter().find_map(|line| line.strip_prefix("port ").map(str::to_owned))
        })
        .await;
        registry.image = format!("127.0.0.1:{port}/test:v1");
        registry
    }

    pub(super) fn image(&self) -> &str {
        &self.image
    }

    pub(super) fn host(&self) -> &str {
        self.image.split('/').next().unwrap_or_default()
    }

    pub(super) async fn is_asked_for_a_layer(&self) {
        let asked = || async { (self.layers_served().await > 0).then_some(()) };
        eventually("the layer is asked for", asked).await;
    }

    pub(super) async fn layers_served(&self) -> usize {
        self.printed().await.iter().filter(|line| *line == "layer asked for").count()
    }

    /// Lets the registry serve the layer.
    pub(super) async fn open(&self) {
        self.containers.shell(&self.container, "touch /open").await;
    }

    async fn printed(&self) -> Vec<String> {
        use futures_util::TryStreamExt;
        let options = bollard::query_parameters::LogsOptionsBuilder::default().stdout(true).stderr(true).build();
        let pieces: Vec<_> =
            self.containers.docker.logs(&self.container, Some(options)).try_collect().await.expect("its output");
        let text: String = pieces.into_iter().map(|piece| piece.to_string()).collect();
        text.lines().map(str::to_owned).collect()
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        let (docker, container, image) = (self.containers.docker.clone(), self.container.clone(), self.image.clone());
        blocking(remove(docker, container, image));
    }
}

async fn remove(docker: Docker, container: String, image: String) {
    let options = RemoveContainerOptionsBuilder::default().force(true).build();
    let _ = docker.remove_container(&container, Some(options)).await;
    let _ = docker.remove_image(&image, None::<RemoveImageOptions>, None).await;
}
