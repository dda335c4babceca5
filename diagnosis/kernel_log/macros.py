"""What stands for what in the rules: addresses, interfaces, and the names by which drivers and programs are known."""

from __future__ import annotations

import re

from .event import DeviceKind

PCI = r"(?:[0-9a-fA-F]{4}){1,2}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?"
#: Containers' and virtual machines' ends come and go all day.
_INTERFACE = (
    r"(?!veth|docker|br-|cali|cni|flannel|cilium|lxc|tap|tun|virbr|vnet|vxlan|lo\b|dummy|ovs|podman)"
    r"[A-Za-z][\w.-]{0,15}"
)
_AMD = r"(?:\bamdgpu\b|\bkfd kfd\b|\bamdkfd\b|\bradeon\b)"
_INTEL = r"(?:\bi915\b|\bxe (?=[0-9a-f]{4}:)|\[xe\])"
_HABANA = r"\bhabanalabs\b"
_ASCEND = (
    r"(?:\bAscend\b|\[ascend\]|\bascend |\bdavinci|\bdevdrv|\bhdcdrv|\bdevmm|\btsdrv|\bdrv_pcie|\bdms_module|\[dms\])"
)
_NIC = (
    r"(?:\bmlx[45]_\w+|\bbnxt_(?:en|re)\b|\bhfi1\w*|\bcxi_\w+|\bhinic\w*|\bionic\w*|\bixgbe(?:vf)?\b|\bqed[efir]?(?:_\w+)?\b|"
    r"\bbnx2x_\w+|"
    r"\b(?:ice|i40e|iavf|irdma|igb|igc|e1000e|ena|efa|erdma|cxgb4|hns3|hns_roce\w*|sfc|tg3|bnx2x?|be2net|ocrdma|fm10k|"
    r"gve|mana|mana_ib|enic|nfp|atlantic|r8169)\b)"
)
#: Programs of the machine, whose end is not a job's.
_DAEMON = (
    r"(?:sshd|systemd[\w-]{0,12}|rsyslogd|syslogd|crond?|dbus-daemon|snmpd|NetworkManager|polkitd|auditd|chronyd|ntpd|"
    r"sssd\w{0,10}|gnome-[\w-]{1,10}|Xorg|gdm[\w-]{0,10}|packagekitd|udisksd|irqbalance|tuned|cupsd|postfix|master|"
    r"zabbix_agentd|collectd|telegraf|node_exporter|lldpd|ipmievd|rpcbind|agetty|login|accounts-daemon|firewalld|"
    r"snapd|fwupd|abrtd?[\w-]{0,10}|smartd|lvmetad|multipathd)"
)
MACROS = {
    "{daemon}": _DAEMON,
    "{nic}": _NIC,
    "{accelerator}": f"(?:{_AMD}|{_INTEL}|{_HABANA}|{_ASCEND})",
    "{amd}": _AMD,
    "{intel}": _INTEL,
    "{habana}": _HABANA,
    "{ascend}": _ASCEND,
    "{pci}": PCI,
    "{interface}": _INTERFACE,
}
#: Words of which every line of such a driver has one, for a rule that ``needs`` the driver.
DRIVER_WORDS = {
    "{habana}": ("habanalabs",),
    "{ascend}": (
        *("[ascend]", "ascend ", "Ascend", "davinci", "devdrv", "hdcdrv", "devmm", "tsdrv", "drv_pcie", "dms_module"),
        "[dms]",
    ),
}
_BY_DRIVER = re.compile(
    rf"(?P<gpu>\b(?:nvidia|amdgpu|radeon|i915|xe|habanalabs) (?={PCI}))|(?P<nic>{_NIC} (?={PCI}))|"
    rf"(?P<disk>\b(?:nvme|ahci|megaraid_sas|mpt3sas|mpi3mr|smartpqi|hpsa|vmd) (?:nvme\d+: )?(?={PCI}))"
)


def kind_by_driver(text: str) -> DeviceKind | None:
    """The kind of a PCIe device, by whose driver writes the line; None where that is not known.

    PCIe says of every device the same.
    """
    found = _BY_DRIVER.search(text)
    return DeviceKind(found.lastgroup) if found and found.lastgroup else None
