//! Sandboxes whose start takes as long as a test wants it to.

use crate::create_params::CreateParams;

/// Ready once its gate is open.
pub(crate) const GATED: &str = "
    [profiles.default]
    command = ['sh', '-c', 'until [ -e /volume/go ]; do sleep 0.05; done; exec httpd -f -p 8080 -h /www']
    readiness = { kind = 'http' }
";

pub(crate) fn open_gate(chat: &CreateParams) {
    std::fs::write(chat.volume().join("go"), "").expect("written");
}
